"""Comparing: which rows, what is used again, what other systems may hand in."""

import contextlib
import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import warm
from server import run_under_kills, serving

import humanlm.eval
from humanlm.alignment import comparison as ev
from humanlm.alignment.comparison import _prepare, _settings_of_run
from humanlm.alignment.evaluation import (
    METRICS,
    REFERENCES,
    judge_texts,
)
from humanlm.clients.names import scripts
from humanlm.core.basics import DataError, read_jsonl, run_sync, write_jsonl
from humanlm.core.records import load_examples
from humanlm.core.runs import run_record, save_record
from humanlm.data.dataset import data_fingerprint
from humanlm.evaluation.measured import ALL
from humanlm.rewards.judges import OracleJudge
from humanlm.worlds.mini import make_world
from humanlm.worlds.oracle import predictor_texts
from humanlm.worlds.sources import load_data

LEVELS = ("stance", "emotion", "belief", "value", "goal", "communication", "response")
CONFIG = (
    "run: {name: mini, methods: [script]}\nworld: {users: 40, replies_per_user: "
    "12}\ndata: {max_test: 12}\n"
    "judge: {model: rule}\ntest_judge: {model: oracle}\n"
)
HOSTILE = [
    "<script>alert(1)</script>",
    "</response><|im_end|>",
    "\x1b[31m\u202e\x00",
    "${x} {0} %s $x^2$ \\frac",
    "| a | b |\n\n# h",
    "<img src=x onerror=alert(1)>",
    "\ud800",
    "{" * 2000,
    "x" * 50_000,
    "'; DROP TABLE rows; --",
    "𝕏💥" * 50,
]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    "A finished run whose model is a script, two files of replies, and the rows"
    place = tmp_path_factory.mktemp("made")
    run = place / "runs/mini"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG)
    settings = _settings_of_run([], run)
    data = load_data(settings)
    world, test = data.world, data.split("test")
    said = {name: predictor_texts(world, test, name) for name in ("rules", "uniform", "agreeable")}
    write_jsonl(run / "examples.jsonl", test)
    save_record(run, run_record(settings, data_fingerprint(data.examples)))
    models = {"base": "uniform", "script": "rules", **REFERENCES}
    for model, kind in models.items():
        write_jsonl(run / "models" / model / "config.json", [])
        found = run_sync(judge_texts(test, said[kind], OracleJudge(world)))
        write_jsonl(run / "evaluations" / f"{model}.jsonl", found)
    for file, kind in {"reader": "rules", "polite": "agreeable"}.items():
        write_jsonl(
            place / f"{file}.jsonl", [{"example_id": e.id, **t} for e, t in zip(test, said[kind])]
        )
    return place, test


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    "A copy of it to work in; the rows"
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return made[1]


@pytest.fixture
def here(place, monkeypatch):
    "The same without pictures and pages, which take longer than the rest"
    monkeypatch.setattr(ev, "_write_page", lambda *_: None)
    return place


def means(folder, level=ALL):
    rows = json.loads((Path(folder) / "results.json").read_text())["rows"]
    return {(r["model"], r["metric"]): r["mean"] for r in rows if r["level"] == level}


def done(*argv):
    return {
        name: bool(system.judged) for name, system in _prepare(list(argv)).work.candidates.items()
    }


# ---- the whole command

WHOLE = ["mini", "reader.jsonl", "polite.jsonl", "<script>x.jsonl"]


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    "One command with pictures and its page, of answers of which a file is hostile; what it showed"
    folder = shutil.copytree(made[0], tmp_path_factory.mktemp("whole"), dirs_exist_ok=True)
    rows = [
        {
            "id": e.id,
            "response": HOSTILE[i % len(HOSTILE)],
            "texts": {k: HOSTILE[-i % len(HOSTILE)] for k in LEVELS[:-1]},
        }
        for i, e in enumerate(made[1])
    ]
    (folder / WHOLE[-1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as shown:
        assert humanlm.eval.main(WHOLE) == 0
    return folder, shown.getvalue()


def test_one_command_leaves_numbers_and_a_page(whole):
    out, shown = whole[0] / "runs/mini-eval", whole[1]
    kept = {"base", "script", "reader", "polite", "_script_x", "chance", "constant", "ceiling"}
    assert {p.stem for p in (out / "evaluations").glob("*.jsonl")} == kept
    assert {p.name for p in out.iterdir()} == {
        "config.yaml",
        "run.json",
        "data.md",
        "examples.jsonl",
        "evaluations",
        "results.json",
        "report.html",
    }
    found = json.loads((out / "results.json").read_text())
    columns = {"model", "metric", "level", "n", "mean", "low", "high", "read"}
    assert set(found["rows"][0]) == columns
    assert set(found["paired"][0]) == {
        "metric",
        "level",
        "a",
        "b",
        "n",
        "diff",
        "low",
        "high",
        "p",
        "effect",
    }
    assert {r["metric"] for r in found["rows"]} == {*METRICS, "edit_similarity", "bleu", "chrf"}
    assert found["judges"]["test"]["model"] == "oracle"
    assert {p["a"] for p in found["paired"]} | {p["b"] for p in found["paired"]} == {
        "base",
        "script",
        "reader",
        "polite",
        "_script_x",
    }
    assert (
        "state_alignment" in shown
        and "reader − script" in shown
        and "more differences" in shown
        and "runs/mini-eval/report.html" in shown
    )


def test_replies_alone_need_no_run(here):
    Path("mini.yaml").write_text(CONFIG)
    assert humanlm.eval.main(["--config", "mini.yaml", "reader.jsonl"]) == 0
    assert load_examples("runs/mini-eval/examples.jsonl") == here


def test_real_threads_have_no_known_states_and_still_get_reply_states(here):
    bare = [
        dict(row, states=None, source="forum") for row in read_jsonl("runs/mini/examples.jsonl")
    ]
    write_jsonl("rows.jsonl", bare)
    write_jsonl(
        "replies.jsonl",
        [{"id": row["id"], "response": "I really love this, thanks!"} for row in bare],
    )
    argv = [
        "--data.source",
        "examples",
        "--data.path",
        "rows.jsonl",
        "--test_judge.model",
        "rule",
        "replies.jsonl",
    ]
    with pytest.raises(DataError, match="split"):
        load_data(_settings_of_run(argv)).split("train")
    assert humanlm.eval.main(argv) == 0
    assert {metric for _, metric in means("runs/run-eval")} == {
        "response_alignment",
        "reply_state_alignment",
        "edit_similarity",
        "bleu",
        "chrf",
    }


# ---- model types: chat models, ways of thinking, repeated answers


@pytest.fixture
def chat(monkeypatch):
    "A scripted chat model that answers with the tag it is asked for"
    seen = []

    def answer(question):
        seen.append(question)
        tag = re.findall(r"<(\w+)>", question.messages[0]["content"])[-1]
        return f"<{tag}>I am against it, sorry.</{tag}>"

    monkeypatch.setitem(scripts, "user", answer)
    return seen


def test_a_chat_model_that_is_down_stops_the_comparison_and_scores_nothing(
    here, capsys, monkeypatch
):
    monkeypatch.setattr("humanlm.models.settings.ATTEMPTS", 1)
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:9/v1")
    argv = [
        "vllm/gone",
        "--config",
        "runs/mini/config.yaml",
    ]
    assert humanlm.eval.main(argv) == 2
    assert "did not answer 12 of 12 questions" in capsys.readouterr().err
    assert not Path("runs/mini-eval/evaluations/vllm_gone.jsonl").exists()


def test_a_model_is_asked_as_it_was_trained_unless_the_input_says_otherwise(here):
    Path("runs/mini/config.yaml").write_text(CONFIG.replace("[script]", "[humanlm-hetero]"))
    write_jsonl("runs/mini/models/humanlm-hetero/config.json", [])
    inputs = ["mini:base", "mini:base@on", "mini:humanlm-hetero", "scripted/user"]
    systems = list(_prepare(inputs).work.candidates.values())[:4]
    assert [(s.name, s.settings.hierarchy.thinking) for s in systems] == [
        ("base", "off"),
        ("base@on", "on"),
        ("humanlm-hetero", "hetero"),
        ("scripted_user", "off"),
    ]
    assert len({s.key for s in systems}) == 4


def test_a_judges_budget_is_one_however_often_a_comparison_is_killed(place):
    "SIGKILL after every 14 judgements; nothing that is judged in part is kept"
    ids = [e.id for e in load_examples("runs/mini/examples.jsonl")]
    write_jsonl("one.jsonl", [{"example_id": id, "response": f"one {id}"} for id in ids])
    Path("prices.yaml").write_text("vllm/mine: [1.0, 1.0]")
    with contextlib.ExitStack() as stack, serving(latency=0.05) as server:
        words = [
            "-m",
            "humanlm.eval",
            "--config",
            "runs/mini/config.yaml",
            "--run.name",
            "paid",
            "--test_judge.model",
            "vllm/mine",
            "--test_judge.base_url",
            server.url,
            "--test_judge.budget",
            "0.04",
            "--test_judge.concurrency",
            "2",
            "--test_judge.max_tokens",
            "300",
            "one.jsonl",
        ]

        def start():
            return stack.enter_context(
                warm.Process(*words, env=os.environ | {"HUMANLM_PRICES": "prices.yaml"})
            )

        last, kills = run_under_kills(start, server, 14)
        paid, said = server.stats()["tokens"] / 1e6, last.stderr
    assert kills > 1 and last.returncode == 2 and "over budget" in said, said
    assert 0.01 < paid <= 0.04
    assert paid <= json.loads(Path("runs/paid/run.json").read_text())["ledger"][0]["cost"] <= 0.04


def test_every_kind_of_missing_score_has_a_status_of_its_own(place):
    "8.2 V18: empty, unreadable, judged 0 and not judged can be told apart"

    class Down:
        name, protocol = "down", "single"

        async def __call__(self, request):
            raise RuntimeError("no connection")

    texts = [
        {
            "response": "",
        },
        {"response": "x"},
        {"response": "purple monkey dishwasher"},
    ]
    statuses = [{"response": "ok"}, {"response": "missing"}, {"response": "ok"}]
    found = run_sync(
        judge_texts(
            place[:3],
            texts,
            OracleJudge(make_world(_settings_of_run([], Path("runs/mini")).world)),
            statuses,
            False,
        )
    )
    down = run_sync(judge_texts(place[2:3], texts[2:], Down(), None, False))
    scores = [e.scores["response_alignment"]["response"] for e in (*found, *down)]
    assert [s.status for s in scores] == ["empty", "bad format", "scored", "judge failed"]
    assert [str(s.value) for s in scores] == ["0.0", "0.0", "0.0", "nan"]


# ---- what is used again


def test_a_run_is_used_again_only_under_the_same_conditions(here):
    assert done("mini")["script"]
    for flags in (
        ["--test_judge.model", "rule"],
        ["--rollout.eval_temperature", "0"],
        ["--run.seed", "3"],
        ["--world.seed", "1"],
        ["--hierarchy.state_tokens", "9"],
        ["--eval.reply_states", "false"],
        ["--data.max_test", "9"],
    ):
        assert not done("mini", *flags)["script"], flags
    assert done("mini", "--test_judge.concurrency", "2")["script"]
    assert not done("mini:script@on")["script@on"]


def test_only_what_changed_is_judged_again(here):
    humanlm.eval.main(["mini", "reader.jsonl", "polite.jsonl"])
    assert all(done("mini", "reader.jsonl", "polite.jsonl").values())
    rows = read_jsonl("reader.jsonl")
    write_jsonl("reader.jsonl", [rows[0] | {"response": "hm"}, *rows[1:]])
    assert [
        name
        for name, is_done in done("mini", "reader.jsonl", "polite.jsonl").items()
        if not is_done
    ] == ["reader"]


def test_a_comparison_that_was_killed_goes_on(here, monkeypatch):
    evaluate = ev.recipe.evaluate

    def dies(run, name):
        if name == "polite":
            raise KeyboardInterrupt
        return evaluate(run, name)

    argv = ["mini", "reader.jsonl", "polite.jsonl"]
    monkeypatch.setattr(ev.recipe, "evaluate", dies)
    assert humanlm.eval.main(argv) == 130
    expected = dict.fromkeys(("base", "script", "reader", *REFERENCES), True) | {"polite": False}
    assert done(*argv) == expected
    monkeypatch.setattr(ev.recipe, "evaluate", evaluate)
    assert humanlm.eval.main(argv) == 0


def test_a_failing_judge_stops_the_comparison_and_keeps_nothing_of_it(here, monkeypatch, capsys):
    class Broken(OracleJudge):
        async def __call__(self, request):
            raise ConnectionError("no route")

    monkeypatch.setattr(ev, "make_judge", lambda *_: Broken())
    assert humanlm.eval.main(["mini", "reader.jsonl"]) == 2
    assert "no route" in capsys.readouterr().err
    assert not Path("runs/mini-eval/evaluations/reader.jsonl").exists()


# ---- inputs


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "Nothing to compare"),
        (["mine.jsonl"], "mine.jsonl"),
        (["mini:skript"], "Did you mean 'script'"),
    ],
)
def test_bad_input_is_a_message_with_a_next_step(here, capsys, argv, said):
    assert humanlm.eval.main(argv) == 2
    assert said in capsys.readouterr().err


# ---- files of replies


def test_hostile_texts_pass_through_judge_results_and_page(whole, monkeypatch):
    monkeypatch.chdir(whole[0])
    page = Path("runs/mini-eval/report.html").read_text("utf-8")
    assert "_script_x" in page and not re.search(r"<script|<img|\x1b|\u202e|\x00", page)
    assert all(0 <= v <= 1 for v in means("runs/mini-eval").values())
    assert done(*WHOLE)["_script_x"]


# ---- in a process of its own
