"Gyms from the command line: who plays, on what, what is kept, and a person as the policy."

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from server import serving

from humanlm.clients.client import ScriptedClient
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import run_sync
from humanlm.core.commands import main
from humanlm.evaluation.answering import Contestant
from humanlm.gyms.evaluation import (
    ChatPlayer,
    load_episodes,
    measured_tasks,
    play_tasks,
)
from humanlm.gyms.protocol import BROKEN, find_gym
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.serving.gym_evaluation import _expert_lessons, _find_player, _PlayerChoice

DATA = Path(os.environ.get("HUMANLM_DATA") or "data") / "userrl"
needs_rows = pytest.mark.skipif(
    not DATA.is_dir(), reason="set HUMANLM_DATA to a folder with userrl"
)
WHO = {
    "title": "Piano",
    "category": "instrument",
    "ground_truth": "Piano - a large keyboard instrument",
    "env_name": "TelepathyGym",
}


def row(n, split="test", **more):
    return {
        "data_source": "interact_telepathygym",
        "prompt": [{"role": "user", "content": "I am thinking of an instrument."}],
        "reward_model": WHO | {"title": f"Piano {n}"} | more,
        "extra_info": {"split": split, "index": n},
    }


def evaluate(out, *words):
    return main(["eval", "gyms", *words, "--play.out", str(out)])


def results(out):
    return json.loads((out / "results.json").read_text("utf-8"))


def means(rows, model):
    "Level → metric → mean; of a single gym the level is `all`"
    table = {}
    for row in (row for row in rows if row["model"] == model):
        table.setdefault(row["level"], {})[row["metric"]] = row["mean"]
    return table


# ---- a person


# ---- who plays, on what


def test_a_model_of_a_run_is_told_what_it_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gym = find_gym("telepathy")
    task, places = gym.tasks(1, 0)[0], tmp_path / "runs" / "mini"
    tiny = make_model(
        ModelConfig(template="chatml", hidden=32, heads=2, kv_heads=2, mlp=64, vocab=420),
        [task.opening] * 20,
    )
    save_model(
        *tiny,
        places / "models" / "gyms",
        {"gyms.json": json.dumps({"system": False, "turn_tokens": 6})},
    )
    (places / "config.yaml").write_text(
        "run: {methods: [gyms]}\ngyms: {turn_tokens: 9, max_turns: 5, system: true}\n"
    )
    for name in ("mini", "mini:gyms", f"hf/{places / 'models' / 'gyms'}"):
        choice = _find_player(name)
        assert choice[2:] == (False, 6) and choice.place.endswith("mini/models/gyms"), name
    words = ["--play.gyms", "telepathy", "--play.count", "2", "--play.max_turns", "3"]
    assert evaluate(tmp_path / "out", "mini", *words) == 0
    episodes = load_episodes(next((tmp_path / "out").glob("*/episodes.jsonl")))
    assert len(episodes) == 2 and not any(math.isnan(e.score) for e in episodes)


LONG = "answered 400: This model's maximum context length is 8192 tokens"


@pytest.mark.parametrize(
    "kind, said, after, stop",
    [
        ("server", "no", 0, "policy_error"),
        ("bad request", LONG, 0, "policy_error"),
        ("bad request", LONG, 1, "length"),
        ("bad request", "answered 400: content policy violation", 1, "policy_error"),
        ("timeout", "no", 1, "policy_error"),
    ],
)
def test_a_model_that_fails_is_no_zero_and_a_dialogue_that_is_too_long_keeps_its_score(
    kind, said, after, stop
):
    gym = find_gym("turtle")
    client = ScriptedClient([*["[action] a"] * after, *[LLMError(kind, said)] * 9])
    [e] = run_sync(play_tasks(gym, gym.tasks(1, 0), ChatPlayer(gym, client)))
    assert e.stop == stop and math.isnan(e.score) == (stop in BROKEN)
    [measured] = measured_tasks([e])
    assert measured.values["policy failed"]["turtle"] == (stop == "policy_error")
    assert measured.values["user failed"]["turtle"] == 0


def test_other_weights_under_the_name_of_a_player_play_anew(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    player = _PlayerChoice("mine", Contestant("mine", str(tmp_path)))
    before = player.folder
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert player.folder != before and _PlayerChoice("expert").folder == "expert"


@needs_rows
@pytest.mark.parametrize(
    "file",
    sorted(
        path.relative_to(DATA).as_posix()
        for path in [*DATA.glob("*.jsonl"), *DATA.glob("parquet/*.parquet")]
        if "travel" not in path.name  # their tables are not below HUMANLM_DATA
    ),
)
def test_every_published_file_is_played(file, tmp_path, capsys):
    assert (
        evaluate(
            tmp_path / "out",
            "expert",
            "chance",
            "--play.rows",
            str(DATA / file),
            "--play.count",
            "4",
        )
        == 0
    )
    expert, chance = (
        means(results(tmp_path / "out")["rows"], player)["all"] for player in ("expert", "chance")
    )
    assert expert["share"] >= 0.9 > 0.5 >= chance["share"]
    assert expert["user failed"] == expert["policy failed"] == 0


# ---- an evaluation is kept

SMALL = ("--play.gyms", "function,telepathy", "--play.count", "3", "--play.k", "2")


def test_episodes_are_gone_on_with_and_other_settings_are_refused(tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluate(out, "expert", "chance", *SMALL) == 0
    before, path = results(out), out / "chance" / "episodes.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    assert len(lines) == 12 and [
        row["mean"]
        for row in before["rows"]
        if (row["model"], row["metric"], row["level"]) == ("expert", "pass@2", "all")
    ] == [1.0]
    path.write_text("".join(lines[:5]) + lines[5][:40], "utf-8")  # as a kill leaves it
    assert evaluate(out, "expert", "chance", *SMALL) == 0
    after = results(out)
    assert after["rows"] == before["rows"] and [
        json.loads(line)["turns"] for line in path.read_text("utf-8").splitlines()[:5]
    ] == [json.loads(line)["turns"] for line in lines[:5]]
    capsys.readouterr()
    for more, said in (
        (["--play.max_turns", "3"], "max_turns: None in the run, 3 now"),
        (["--play.seed", "5"], "seed: 3 in the run, 5 now"),
    ):
        assert evaluate(out, "expert", *SMALL, *more) == 2
        assert said in (err := capsys.readouterr().err) and "--play.out" in err
    assert results(out)["rows"] == before["rows"]
    assert evaluate(out, "idle", *SMALL, "--play.k", "3") == 0, "players and copies may grow"
    assert (
        evaluate(out, "expert", "--play.gyms", "function", "--play.count", "3", "--fresh") == 0
        and (tmp_path / "out.old-1" / "chance").is_dir()
    )


def test_the_plan_asks_nobody(tmp_path, capsys):
    assert (
        evaluate(
            tmp_path / "out",
            "openai/gpt-5-mini",
            "expert",
            "--user.model",
            "openai/gpt-5-mini",
            *SMALL,
            "--dry-run",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert (
        "at most 192 calls" in out and "judge       rule" in out and not (tmp_path / "out").exists()
    )  # 2 gyms, 3 tasks, 2 copies, 16 turns


@pytest.fixture(scope="module")
def server():
    with serving() as service:
        yield service


def test_a_chat_server_is_the_user_by_the_published_variables(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MULTITURN_MODEL_NAME", "tiny")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    play = (
        tmp_path / "out",
        "expert",
        "--play.gyms",
        "telepathy",
        "--play.count",
        "4",
        "--user.model",
        "env",
    )
    server.configure(says="I would rather not.")
    assert evaluate(*play) == 0
    assert results(tmp_path / "out")["stops"]["expert"] == {"user_error": 4}
    [score] = [row for row in results(tmp_path / "out")["rows"] if row["metric"] == "score"][:1]
    assert score["mean"] is None, "a failed user is no zero"
    server.configure(says='{"response": "No"}')
    assert evaluate(*play) == 0
    found, episodes = (
        results(tmp_path / "out"),
        load_episodes(tmp_path / "out" / "expert" / "episodes.jsonl"),
    )
    assert found["stops"]["expert"] == {"done": 4} and len(episodes) == 4
    [row] = found["others"]["costs"]
    assert (found["others"]["user"], found["others"]["judge"]) == ("vllm/tiny", "rule")
    assert row["caller"] == "user" and row["calls"] >= 8 + 4


def test_a_gym_of_ones_own_is_named_by_module(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\nfrom humanlm.gyms.telepathy import telepathy\n"
        "word = replace(telepathy, name='word')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = ("--play.gyms", "mine:word", "--play.count", "2")
    assert evaluate(tmp_path / "out", "expert", *mine) == 0
    assert means(results(tmp_path / "out")["rows"], "expert")["all"]["score"] == 1
    words = ["--lessons.gyms", "mine:word", "--lessons.out", str(tmp_path / "set")]
    assert main(["data", "lessons", *words]) == 0


# ---- lessons


def test_lessons_hold_no_episode_below_the_best_score():
    gym = find_gym("intention")
    gym = replace(gym, config=replace(gym.config, max_turns=3))  # too few turns for some requests
    tasks = gym.tasks(30, 2)
    assert 0 < len(run_sync(_expert_lessons(gym, tasks))) < 30
