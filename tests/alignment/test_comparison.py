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
from humanlm.alignment import recipe
from humanlm.alignment.comparison import prepare, read_settings
from humanlm.alignment.evaluation import (
    METRICS,
    REFERENCES,
    judge_texts,
    load_evaluations,
    save_evaluations,
)
from humanlm.clients.names import scripts
from humanlm.core.basics import DataError, read_jsonl, run_sync, write_jsonl
from humanlm.core.records import load_examples
from humanlm.core.runs import run_record, save_record
from humanlm.evaluation.measured import ALL
from humanlm.hierarchy.prompts import make_rows, parts_text
from humanlm.rewards.judge_settings import JudgeConfig, make_judge
from humanlm.rewards.judges import OracleJudge, RuleJudge
from humanlm.worlds.mini import make_world
from humanlm.worlds.oracle import predictor_texts
from humanlm.worlds.sources import load_data

LEVELS = ("stance", "emotion", "belief", "value", "goal", "communication", "response")
CONFIG = (
    "run: {name: mini, methods: [script]}\nworld: {users: 40, replies_per_user: "
    "12}\ndata: {max_test: 12}\n"
    "eval: {bootstrap: 20}\njudge: {model: rule}\ntest_judge: {model: oracle}\n"
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
    settings = read_settings([], run)
    world, test = make_world(settings.world), load_data(settings).split("test")
    said = {name: predictor_texts(world, test, name) for name in ("rules", "uniform", "agreeable")}
    write_jsonl(run / "examples.jsonl", test)
    save_record(run, run_record(settings))
    models = {"base": "uniform", "script": "rules", **REFERENCES}
    for model, kind in models.items():
        found = run_sync(judge_texts(test, said[kind], OracleJudge(world)))
        save_evaluations(run / "evaluations" / f"{model}.jsonl", found)
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
    return {task.system.name: bool(task.home) for task in prepare(list(argv)).tasks}


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
    assert found["judges"]["test"]["model"] == "oracle" and {
        r["level"] for r in found["importance"]
    } == set(LEVELS[:-1])
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
        and "runs/mini-eval/report.html" in shown
    )


def test_replies_alone_need_no_run(here):
    Path("mini.yaml").write_text(CONFIG)
    assert humanlm.eval.main(["--config", "mini.yaml", "reader.jsonl"]) == 0
    assert load_examples("runs/mini-eval/examples.jsonl") == here


def test_rows_can_be_had_before_anybody_has_answered(here, capsys):
    Path("mini.yaml").write_text(CONFIG)
    assert humanlm.eval.main(["--config", "mini.yaml"]) == 2
    assert "The rows to answer are in runs/mini-eval/examples.jsonl" in capsys.readouterr().err
    rows = read_jsonl("runs/mini-eval/examples.jsonl")
    write_jsonl("theirs.jsonl", [{"id": row["id"], "response": "well, maybe"} for row in rows])
    assert humanlm.eval.main(["--config", "mini.yaml", "theirs.jsonl"]) == 0


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
        load_data(read_settings(argv)).split("train")
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


def test_a_chat_model_gets_the_same_prompt_and_is_read_by_the_same_parser(here, chat):
    assert humanlm.eval.main(["mini:script", "scripted/user", "--eval.budget", "1"]) == 0
    found = {
        e.example_id: e for e in load_evaluations("runs/mini-eval/evaluations/scripted_user.jsonl")
    }
    assert [*found] == [e.id for e in here] and {
        t for e in found.values() for t in e.texts.values()
    } == {"I am against it, sorry."}
    assert len(chat) == len(here) * len(LEVELS)
    row = make_rows(here[:1], read_settings([], Path("runs/mini")).hierarchy, ["stance"])[0]
    asked = [q for q in chat if q.messages[0]["content"] == parts_text(row["prompt"][0]["content"])]
    assert len(asked) == 1 and all(
        m["content"] in asked[0].messages[1]["content"] for m in row["prompt"][1:]
    )
    ledger = json.loads(Path("runs/mini-eval/run.json").read_text())["ledger"]
    assert [(line["caller"], line["calls"]) for line in ledger] == [("simulated user", len(chat))]
    assert humanlm.eval.main(["mini:script", "scripted/user"]) == 0 and len(chat) == len(
        here
    ) * len(LEVELS), "judged before"


def test_a_chat_model_that_is_down_stops_the_comparison_and_scores_nothing(here, capsys):
    argv = [
        "vllm/gone",
        "--eval.base_url",
        "http://127.0.0.1:9/v1",
        "--test_judge.attempts",
        "1",
        "--config",
        "runs/mini/config.yaml",
    ]
    assert humanlm.eval.main(argv) == 2
    assert "did not answer 12 of 12 questions" in capsys.readouterr().err
    assert not Path("runs/mini-eval/evaluations/vllm_gone.jsonl").exists()


def test_a_model_is_asked_as_it_was_trained_unless_the_input_says_otherwise(here):
    Path("runs/mini/config.yaml").write_text(CONFIG.replace("[script]", "[humanlm-hetero]"))
    for name in ("base", "humanlm-hetero"):
        Path(f"runs/mini/models/{name}").mkdir(parents=True)
        Path(f"runs/mini/models/{name}/config.json").write_text("{}")
    tasks = prepare(["mini:base", "mini:base@on", "mini:humanlm-hetero", "scripted/user"]).tasks[:4]
    assert [(t.system.name, t.candidate.settings.hierarchy.thinking) for t in tasks] == [
        ("base", "off"),
        ("base@on", "on"),
        ("humanlm-hetero", "hetero"),
        ("scripted_user", "off"),
    ]
    assert len({t.key for t in tasks}) == 4


def test_models_that_think_are_asked_for_composed_replies_if_their_mode_says_so(here):
    Path("runs/mini/config.yaml").write_text(
        CONFIG.replace("[script]", "[humanlm-hetero, humanlm-composed]")
    )
    for name in ("base", "humanlm-hetero", "humanlm-composed"):
        place = Path(f"runs/mini/models/{name}")
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")

    def composed(*argv):
        tasks = prepare(["mini:base@hetero", "mini:base", "mini:humanlm-composed", *argv]).tasks
        return [t.candidate.settings.rollout.compose for t in tasks if t.system.kind == "model"]

    assert composed() == [False, False, True]
    assert composed("--rollout.compose", "true") == [True, False, True]


def test_all_models_are_asked_the_same_rows_whatever_their_prompts(here):
    "8.2 V14: the list of ids is fixed before any prompt is made or shortened"
    lists = [
        [e.id for e in prepare(["mini:script", *flags]).rows.examples]
        for flags in (
            [],
            ["--hierarchy.prompt", "full"],
            ["--hierarchy.thinking", "on"],
            ["--model.max_prompt_tokens", "20"],
        )
    ]
    assert all(ids == lists[0] for ids in lists) and len(lists[0]) == 12


def test_a_bad_file_of_replies_leaves_nothing_behind(place):
    write_jsonl("bad.jsonl", [{"example_id": "nobody", "response": "x"}])
    with pytest.raises(DataError, match="no held-out row has the id 'nobody'"):
        prepare(["--run.name", "new-eval", "--data.max_test", "7", "bad.jsonl"])
    assert not Path("runs/new-eval").exists()


def test_what_a_stopped_comparison_spent_is_counted_when_it_goes_on(here, monkeypatch):
    "Money is written down as it is spent, also for the system whose judging failed"
    ids = [e.id for e in load_examples("runs/mini/examples.jsonl")]
    for name in ("one", "two"):
        write_jsonl(f"{name}.jsonl", [{"example_id": id, "response": f"{name} {id}"} for id in ids])
    asked = [
        "--config",
        "runs/mini/config.yaml",
        "--run.name",
        "paid",
        "--test_judge.model",
        "scripted/judge",
        "one.jsonl",
        "two.jsonl",
    ]
    save, stop = recipe.save_evaluations, [False]

    def stopping(path, found):
        if path.stem == "two" and stop[0]:
            raise KeyboardInterrupt
        return save(path, found)

    monkeypatch.setattr(recipe, "save_evaluations", stopping)
    stop[0] = True
    with pytest.raises(KeyboardInterrupt):
        ev.compare(prepare(asked))

    def calls():
        return sum(
            row["calls"] for row in json.loads(Path("runs/paid/run.json").read_text())["ledger"]
        )

    before = calls()
    stop[0] = False
    ev.compare(prepare(asked))
    assert before > 0 and calls() > before


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
            OracleJudge(make_world(read_settings([], Path("runs/mini")).world)),
            statuses,
            False,
        )
    )
    down = run_sync(judge_texts(place[2:3], texts[2:], Down(), None, False))
    scores = [e.scores["response_alignment"]["response"] for e in (*found, *down)]
    assert [s.status for s in scores] == ["empty", "bad format", "scored", "judge failed"]
    assert [str(s.value) for s in scores] == ["0.0", "0.0", "0.0", "nan"]


def test_checkpoints_are_compared_in_the_order_of_their_steps(here, capsys):
    for step in (20, 100, 3):
        Path(f"runs/mini/checkpoints/script/checkpoint-{step}").mkdir(parents=True)
        Path(f"runs/mini/checkpoints/script/checkpoint-{step}/model.safetensors").write_text("")
    Path("runs/mini/checkpoints/script/checkpoint-7").mkdir()  # cut off by a kill: no weights
    c = prepare(["dynamics", "mini"])
    assert c.folder == Path("runs/mini-dynamics")
    assert [t.system.name for t in c.tasks if t.system.kind == "model"] == [
        "script step 3",
        "script step 20",
        "script step 100",
    ]
    assert (
        humanlm.eval.main(["dynamics", "mini:base"]) == 2
        and "Unknown method of runs/mini 'base'" in capsys.readouterr().err
    )


# ---- the paper's tables


def test_results_come_in_the_shape_of_the_papers_tables(here, capsys):
    humanlm.eval.main(["mini:script"])
    assert humanlm.eval.main(["tables", "runs/mini-eval"]) == 0
    shown = capsys.readouterr().out
    assert "miniworld" in shown and "script" in shown
    assert humanlm.eval.main(["tables"]) == 2 and humanlm.eval.main(["tables", "nowhere"]) == 2


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
    assert done("mini", "--test_judge.concurrency", "2", "--eval.bootstrap", "50")["script"]


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
    evaluations_of = ev.evaluations_of

    def dies(run, name):
        if name == "polite":
            raise KeyboardInterrupt
        return evaluations_of(run, name)

    argv = ["mini", "reader.jsonl", "polite.jsonl"]
    monkeypatch.setattr(ev, "evaluations_of", dies)
    assert humanlm.eval.main(argv) == 130
    expected = dict.fromkeys(("base", "script", "reader", *REFERENCES), True) | {"polite": False}
    assert done(*argv) == expected
    monkeypatch.setattr(ev, "evaluations_of", evaluations_of)
    assert humanlm.eval.main(argv) == 0


def test_a_folder_with_something_else_is_left_alone(here, capsys):
    before = {p: p.read_bytes() for p in Path("runs/mini").rglob("*") if p.is_file()}
    assert humanlm.eval.main(["mini", "--run.name", "mini"]) == 2
    assert "holds no comparison" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in Path("runs/mini").rglob("*") if p.is_file()} == before
    humanlm.eval.main(["mini"])
    assert humanlm.eval.main(["mini", "--test_judge.model", "rule", "polite.jsonl"]) == 2
    assert "--fresh" in capsys.readouterr().err
    assert (
        humanlm.eval.main(
            [
                "mini:script",
                "reader.jsonl",
                "--data.max_test",
                "5",
                "--fresh",
                "--run.name",
                "mini-eval",
            ]
        )
        == 2
    )  # 12 answers
    assert Path("runs/mini-eval/results.json").exists()


def test_a_failing_judge_stops_the_comparison_and_keeps_nothing_of_it(here, monkeypatch, capsys):
    class Broken(OracleJudge):
        async def __call__(self, request):
            raise ConnectionError("no route")

    monkeypatch.setattr(ev, "make_judge", lambda *_: Broken())
    assert humanlm.eval.main(["mini", "reader.jsonl"]) == 2
    assert "no route" in capsys.readouterr().err
    assert not Path("runs/mini-eval/evaluations/reader.jsonl").exists()


def test_a_broken_evaluation_of_a_run_is_named(here, capsys):
    Path("runs/mini/evaluations/script.jsonl").write_text('{"example_id": "1"}\n')
    assert humanlm.eval.main(["mini"]) == 2
    assert "evaluations/script.jsonl, row 1: not an evaluation" in capsys.readouterr().err


# ---- inputs


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "Nothing to compare"),
        (["mine.jsonl"], "model or file 'mine.jsonl'"),
        (["mino"], "Did you mean 'mini'"),
        (["mini:skript"], "Did you mean 'script'"),
        (["mini", "--eval.split", "tset"], "Unknown split 'tset'"),
    ],
)
def test_bad_input_is_a_message_with_a_next_step(here, capsys, argv, said):
    assert humanlm.eval.main(argv) == 2
    assert said in capsys.readouterr().err


# ---- files of replies

BAD = {
    "no JSON": ("{", "row 3: not JSON"),
    "unknown id": (
        '{"id": "nobody", "response": "x"}',
        "row 3: no held-out row has the id 'nobody'",
    ),
    "no response": ('{"id": "ID", "answer": "x"}', "row 3: response, and each state"),
    "half the levels": (
        '{"id": "ID", "response": "x", "stance": "y"}',
        "row 3: not the same levels",
    ),
    "twice": ('{"id": "FIRST", "response": "x"}', "is answered twice"),
}


@pytest.mark.parametrize("line, said", BAD.values(), ids=BAD)
def test_a_bad_row_is_named_before_anything_is_judged(here, capsys, line, said):
    line = (
        line
        if isinstance(line, bytes)
        else line.replace("ID", here[1].id).replace("FIRST", here[0].id).encode()
    )
    first = json.dumps({"id": here[0].id, "response": "x"}).encode()
    Path("bad.jsonl").write_bytes(first + b"\n\n" + line + b"\n")
    assert humanlm.eval.main(["mini", "bad.jsonl"]) == 2
    err = capsys.readouterr().err
    assert said in err and "bad.jsonl" in err and err.rstrip().endswith(".")
    assert not Path("runs/mini-eval").exists()


def test_silence_scores_zero_and_says_so(here):
    write_jsonl("mute.jsonl", [{"id": e.id, "response": ""} for e in here])
    humanlm.eval.main(["mini", "mute.jsonl"])
    assert means("runs/mini-eval")["mute", "response_alignment"] == 0
    assert (
        read_jsonl("runs/mini-eval/evaluations/mute.jsonl")[0]["scores"]["response_alignment"][
            "response"
        ]["status"]
        == "empty"
    )


def test_hostile_texts_pass_through_judge_results_and_page(whole, monkeypatch):
    monkeypatch.chdir(whole[0])
    page = Path("runs/mini-eval/report.html").read_text("utf-8")
    assert "_script_x" in page and not re.search(r"<script|<img|\x1b|\u202e|\x00", page)
    assert all(0 <= v <= 1 for v in means("runs/mini-eval").values())
    assert done(*WHOLE)["_script_x"]


# ---- in a process of its own


def test_a_model_is_asked_like_its_run_asked_it(here, monkeypatch):
    from humanlm.models.checkpoints import make_model, save_model
    from humanlm.models.config import ModelConfig

    tiny = ModelConfig(hidden=16, layers=1, heads=2, kv_heads=2, head_dim=8, mlp=16, vocab=700)
    save_model(
        *make_model(tiny, [e.reply for e in here], [f"<{level}>" for level in LEVELS]),
        "runs/mini/models/tiny",
    )
    seen = []
    monkeypatch.setattr(
        recipe, "evaluate_model", lambda *args: seen.append(args) or evaluate_model(*args)
    )
    from humanlm.alignment.evaluation import evaluate_model

    assert (
        humanlm.eval.main(["mini:tiny", "--data.max_test", "4", "--hierarchy.response_tokens", "9"])
        == 0
    )
    assert (
        seen[0][0] == "runs/mini/models/tiny"
        and seen[0][2].hierarchy.response_tokens == 9
        and len(seen[0][1]) == 4
    )
    assert done("mini:tiny", "--data.max_test", "4", "--hierarchy.response_tokens", "9")["tiny"]
    assert (
        humanlm.eval.main(
            ["runs/mini/models/tiny", "--data.max_test", "4", "--hierarchy.response_tokens", "9"]
        )
        == 0
        and len(seen) == 1
    )


def test_one_mistake_beside_a_run_is_one_problem(here, capsys):
    assert humanlm.eval.main(["mini", "--eval.bootstrap", "x"]) == 2
    said = capsys.readouterr().err
    assert "one problem" in said and "--eval.bootstrap must be int, got 'x'" in said


def test_the_states_in_a_reply_are_one_question_to_a_model_and_the_same_scores():
    world = make_world()
    examples = [e for e in world.examples if e.split == "test"][:5]
    texts = [{**e.states, "response": e.reply.replace(".", "!") + " ok"} for e in examples[:-1]] + [
        dict.fromkeys([*examples[0].states, "response"], "")
    ]
    model = make_judge(JudgeConfig("scripted/judge"))
    by_model, by_rule = (
        run_sync(judge_texts(examples, texts, judge)) for judge in (model, RuleJudge())
    )
    asked = [json.loads(r.messages[1]["content"]) for r in model.client.requests]
    assert sum("levels" in q for q in asked) == 5 and all(
        len(q["levels"]) == 6 for q in asked if "levels" in q
    )
    for a, b in zip(by_model, by_rule):
        for metric, levels in b.scores.items():
            assert {k: s.status for k, s in a.scores[metric].items()} == {
                k: s.status for k, s in levels.items()
            }
            assert [s.value for s in a.scores[metric].values()] == pytest.approx(
                [s.value for s in levels.values()], nan_ok=True
            )
