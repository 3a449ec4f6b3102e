"""Theory-of-Mind runs: questions answered once whatever happens, runs compared in pairs."""

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import warm
from server import run_under_kills, serving

import humanlm.clients.names
import humanlm.models.settings
from humanlm.clients.client import ScriptedClient
from humanlm.clients.names import scripts
from humanlm.clients.protocol import LLMError
from humanlm.core.commands import main
from humanlm.social.answers import memory_answer, to_context
from humanlm.social.contexts import read_context
from humanlm.social.generation import generate, write_stories
from humanlm.social.language import read_question
from humanlm.social.parsing import SymbolicParser
from humanlm.tom.answers import AnswerConfig, Asker, modes
from humanlm.tom.runs import Respondent, _answer_all, _read_outcomes
from humanlm.tom.sets import benchmarks

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("HUMANLM_DATA") or "data")
SETS = ("hitom", "confaide", "mmtom")


def need_data(name):
    if not (DATA / benchmarks[name].file).exists():
        pytest.skip(f"needs {benchmarks[name].file} below HUMANLM_DATA")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    "A file of Hi-ToM-like questions of our own: 18 stories, 90 questions"
    path = tmp_path_factory.mktemp("own") / "hitom.jsonl"
    write_stories("hitom", 18, 3, path)
    return path


@pytest.fixture(autouse=True)
def own_scripts(monkeypatch):
    monkeypatch.setattr(
        humanlm.clients.names,
        "scripts",
        scripts
        | {
            "first": first_option,
            "reader": context_reader,
            "place": current_place,
        },
    )
    monkeypatch.setattr(
        humanlm.clients.names,
        "clients",
        humanlm.clients.names.clients
        | {
            "scripted": lambda name, **o: ScriptedClient(
                humanlm.clients.names.scripts[name], f"scripted/{name}", **o
            )
        },
    )


def said(answer):
    return json.dumps({"reasoning": "", "answer": str(answer)})


def options_of(text):
    return dict(re.findall(r"^([A-Z])\. (.+)$", text, re.M))


def letter(text, place):
    return next((key for key, option in options_of(text).items() if option == place), "?")


def first_option(request):
    "A model that always takes the first option"
    found = re.findall(r"^([A-Za-z0-9]+)\. ", request.messages[-1]["content"], re.M)
    return said(found[0] if found else "June 3rd")


def current_place(request):
    "A model that knows where things are and nothing about minds"
    text = request.messages[-1]["content"]
    thing = read_question(re.search(r"^Question: (.+)$", text, re.M)[1]).object
    places = re.findall(
        rf"(?:{thing} is in the|moved the {thing} to the) (\w+)\.", text.partition("Question:")[0]
    )
    return said(letter(text, places[-1]))


def context_reader(request):
    "A model that uses a record perfectly if there is one, and else knows nothing about minds"
    text = request.messages[-1]["content"]
    found = re.search(r"\{\n  \"agents_names\".*?\n\}", text, re.S)
    asked = read_question(re.search(r"^Question: (.+)$", text, re.M)[1])
    if not found or not asked.chain:
        return current_place(request)
    return said(
        letter(text, memory_answer(read_context(json.loads(found[0])), asked.chain, asked.object))
    )


def run(*words, out):
    return main(["eval", "tom", *words, f"--tom.out={out}"])


def lines(folder):
    return (folder / "answers.jsonl").read_text().splitlines()


# ---- the whole way, on public files


@cache
def kinds_in(name):
    "The lines of a public file, each with the types of its questions"
    b = benchmarks[name]
    found = [
        (
            line,
            {item.kind for item in b.items({"index": str(n), **json.loads(line)}, **b.checked({}))},
        )
        for n, line in enumerate((DATA / b.file).read_text().splitlines())
    ]
    assert set().union(*(kinds for _, kinds in found)) == {
        item.kind for item in b.load(DATA / b.file)
    }
    return found


def drawn(name, folder, most=3):
    "A file with some rows of a public one for every type of question, and these types"
    need_data(name)
    kept, seen = [], Counter()
    for line, kinds in kinds_in(name):
        if any(seen[kind] < most for kind in kinds):
            seen.update(kinds)
            kept.append(line + "\n")
    path = folder / Path(benchmarks[name].file).name
    path.write_text("".join(kept))
    return path, set(seen)


@pytest.mark.parametrize("name", SETS)
def test_public_files_run_from_end_to_end_with_a_scripted_model(name, tmp_path, capsys):
    path, kinds = drawn(name, tmp_path)
    assert run(name, f"--tom.file={path}", "--model.name=scripted/first", out=tmp_path) == 0
    folder = tmp_path / f"{name}-vanilla-scripted_first"
    outcomes = _read_outcomes(folder / "answers.jsonl")
    assert len(outcomes) == len(benchmarks[name].load(path)) and {o.kind for o in outcomes} == kinds
    assert {p.name for p in folder.iterdir()} == {
        "answers.jsonl",
        "charges.jsonl",
        "config.yaml",
        "measured",
        "report.md",
        "results.json",
        "run.json",
    }
    assert json.loads((folder / "run.json").read_text())["state"] == "finished"
    shown = capsys.readouterr().out
    assert "95 % interval" in shown and ("chance" in shown or name == "confaide")


# ---- contexts that nobody used


def test_a_run_without_answers_does_not_keep_others_from_being_compared(own, tmp_path, capsys):
    words = ("hitom", f"--tom.file={own}", "--model.name=scripted/reader")
    for name, mode, parser in (
        ("a", "vanilla", "symbolic"),
        ("b", "context", "symbolic"),
        ("none", "pure_context", "dialogue"),
    ):
        more = (f"--tom.mode={mode}", f"--parser.name={parser}", f"--tom.name={name}")
        assert run(*words, *more, out=tmp_path) == int(name == "none")
    capsys.readouterr()
    assert main(["eval", "none", "a", "b", f"--run.out={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^b − a ", shown, re.M) and not re.search(r"^none ", shown, re.M)


# ---- people who are asked


# ---- baselines and the ceiling


def test_trivial_baselines_stand_beside_the_result(tmp_path, capsys):
    need_data("hitom")
    assert run("hitom", out=tmp_path) == 0
    found = json.loads((tmp_path / "hitom-vanilla-symbolic/results.json").read_text())
    cell = {(x["model"], x["metric"]): x["mean"] for x in found["rows"]}

    def order(name):
        return [round(cell[name, f"accuracy, order: {k}"] * 63) for k in range(5)]

    assert order("hitom-vanilla-symbolic") == order("symbolic") == [63, 63, 60, 60, 58]
    assert order("current place") == [63, 37, 23, 21, 19] and order("last agent") == [
        63,
        63,
        30,
        26,
        23,
    ]
    assert cell["chance", "accuracy"] == pytest.approx(1 / 15)
    text = (tmp_path / "hitom-vanilla-symbolic/report.md").read_text()
    assert (
        "agrees with 304 of 315 labels (96.5%)" in text
        and "hitom-vanilla-symbolic | 315 | 0.97 |" in text
    )


@pytest.mark.parametrize("half, right, faulty", [("CoTP", 304, []), ("VP", 260, [1.0])])
def test_both_label_policies_are_counted_on_the_public_file(half, right, faulty, tmp_path):
    need_data("hitom")
    assert run("hitom", f"--rows.prompting={half}", "--tom.name=x", out=tmp_path) == 0
    rows = json.loads((tmp_path / "x/results.json").read_text())["rows"]
    assert round(rows[0]["mean"] * rows[0]["n"]) == right
    assert [r["mean"] for r in rows if r["model"] == "symbolic, known faults"][:1] == faulty


# ---- runs that say nothing


# ---- resuming


def test_a_killed_run_goes_on_and_leaves_no_trace(own, tmp_path):
    "SIGKILL in the middle of a run: the rest is asked once, and the file is that of a whole run"
    command = [
        "-m",
        "humanlm",
        "eval",
        "tom",
        "hitom",
        f"--tom.file={own}",
        "--model.name=vllm/echo",
        "--model.concurrency=8",
    ]
    with serving(latency=0.25, says=said("A")) as server, ExitStack() as stack:
        env = os.environ | {"VLLM_BASE_URL": server.url}
        process = stack.enter_context(
            warm.Process(*command, f"--tom.out={tmp_path}/killed", cwd=ROOT, env=env)
        )
        folder = tmp_path / "killed/hitom-vanilla-vllm_echo"
        deadline = time.monotonic() + 300
        while not (folder / "answers.jsonl").exists() or len(lines(folder)) < 20:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with (folder / "answers.jsonl").open("a") as file:
            file.write('{"id": "17", "set_id": "ta')  # as a kill in the middle of a line leaves it
        kept = len(_read_outcomes(folder / "answers.jsonl"))
        assert 20 <= kept < 90
        server.configure(latency=0.0)
        server.reset()
        assert warm.run(*command, f"--tom.out={tmp_path}/killed", cwd=ROOT, env=env).returncode == 0
        assert server.stats()["requests"] == 90 - kept
        assert (
            warm.run(
                *command, f"--tom.out={tmp_path}/whole", "--model.concurrency=1", cwd=ROOT, env=env
            ).returncode
            == 0
        )
    whole = tmp_path / "whole/hitom-vanilla-vllm_echo"
    for name in ("answers.jsonl", "results.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_one_failing_question_stays_alone_and_is_asked_again(own, tmp_path, capsys, monkeypatch):
    broken = {"on": True}

    def fails_at_times(request):
        if broken["on"] and "celery" in request.messages[-1]["content"]:
            return LLMError("malformed", "nonsense")
        return (
            ValueError("a bug")
            if broken["on"] and request.messages[-1]["content"].count("moved") == 3
            else first_option(request)
        )

    monkeypatch.setitem(humanlm.clients.names.scripts, "fickle", fails_at_times)
    monkeypatch.setattr(humanlm.models.settings, "ATTEMPTS", 1)
    words = ("hitom", f"--tom.file={own}", "--model.name=scripted/fickle")
    code = run(*words, out=tmp_path)
    folder = tmp_path / "hitom-vanilla-scripted_fickle"
    outcomes = _read_outcomes(folder / "answers.jsonl")
    failed = [o for o in outcomes if o.failed]
    assert len(outcomes) == 90 and 0 < len(failed) < 60 and not any(o.scores for o in failed)
    assert (
        code == int(len(failed) / 90 > 0.1)
        and json.loads((folder / "run.json").read_text())["state"] == "started"
    )
    assert "ValueError: a bug" in capsys.readouterr().out
    broken["on"] = False
    assert run(*words, out=tmp_path) == 0
    assert not any(o.failed for o in _read_outcomes(folder / "answers.jsonl"))
    ledger = json.loads((folder / "run.json").read_text())["ledger"]
    assert sum(row["calls"] for row in ledger) == 90  # what was answered before is not asked again


def test_a_failure_that_concerns_all_questions_stops_the_run(own, tmp_path, capsys, monkeypatch):
    calls = []

    def locked_out(request):
        calls.append(1)
        return first_option(request) if len(calls) < 30 else LLMError("auth", "the key is wrong")

    monkeypatch.setitem(humanlm.clients.names.scripts, "locked", locked_out)
    words = ("hitom", f"--tom.file={own}", "--model.name=scripted/locked", "--model.concurrency=2")
    assert run(*words, out=tmp_path) == 2
    error = capsys.readouterr().err
    assert "the key is wrong" in error and "29 answers are kept" in error
    assert len(calls) < 40 and len(lines(tmp_path / "hitom-vanilla-scripted_locked")) == 29


def test_a_budget_is_one_however_often_a_run_is_killed(own, tmp_path):
    "SIGKILL after every 15 answers: what the server wrote never costs more than the budget"
    prices = tmp_path / "prices.yaml"
    prices.write_text("vllm/echo: [0.0, 1000.0]")  # 12 tokens an answer, at most 40
    command = [
        "-m",
        "humanlm",
        "eval",
        "tom",
        "hitom",
        f"--tom.file={own}",
        "--model.name=vllm/echo",
        "--answer.max_tokens=40",
        "--model.concurrency=4",
        "--model.budget=0.90",
        f"--tom.out={tmp_path}",
    ]
    with (
        serving(latency=0.05, says='{"reasoning": "as far as I know", "answer": "A"}') as server,
        ExitStack() as stack,
    ):
        env = os.environ | {"VLLM_BASE_URL": server.url, "HUMANLM_PRICES": str(prices)}
        last, kills = run_under_kills(
            lambda: stack.enter_context(warm.Process(*command, cwd=ROOT, env=env)), server, 15
        )
        written = 0.012 * server.stats()["ok"]
        assert kills > 1 and last.returncode == 2 and "over budget" in last.stderr
    assert 0.45 < written <= 0.90, (
        "each of some kills leaves at most four calls whose cost nobody knows; they count in full"
    )
    ledger = json.loads((tmp_path / "hitom-vanilla-vllm_echo/run.json").read_text())["ledger"]
    assert written <= sum(row["cost"] for row in ledger) <= 0.90


# ---- contexts


class Counting(SymbolicParser):
    def __init__(self):
        super().__init__()
        self.texts = []

    async def __call__(self, text, task=""):
        self.texts.append(text)
        await asyncio.sleep(0.01)
        return await super().__call__(text, task)


def test_a_shared_text_is_parsed_once_also_when_many_questions_wait(own):
    hitom = benchmarks["hitom"]
    items = hitom.load(own).items
    parser = Counting()
    job = Respondent(
        hitom,
        "context",
        Asker(ScriptedClient(first_option), hitom, AnswerConfig()),
        parser=parser,
    )
    kept = []
    asyncio.run(_answer_all(job, items, kept.append, 64))
    assert (
        len(kept) == 90
        and Counter(Counter(parser.texts).values()) == {1: 18}
        and not any(o.failed for o in kept)
    )


# ---- modes of asking


@pytest.mark.parametrize("mode", [m for m in modes if m != "few_shot"])
@pytest.mark.parametrize("name", ["tomi", "fantom", "hitom", "mmtom", "cobra", "confaide"])
def test_every_way_answers_every_benchmark(name, mode, tmp_path):
    "Modes that mean nothing for a benchmark fall back and say so; none fails in silence"
    rows = {
        "tomi": {
            "story": "Ira sat.",
            "question": "Where will Ira look for the rope?",
            "correct_answer": "crate",
        },
        "fantom": {
            "set_id": "1-0-0",
            "context": "Ira: Hi.\nBo: Hi.",
            "question": "Does Ira know it?",
            "question_type": "tom:answerability:binary",
            "correct_answer": "yes",
        },
        "hitom": {
            "story": "1 Ira sat.",
            "question": "Where does Ira really think the pen is?",
            "choices": "A. x, B. y",
            "correct_answer": "x",
            "deception": False,
            "story_length": 1,
            "question_order": 1,
        },
        "mmtom": {
            "question": "A flat. Question: Which? (a) Ira naps. (b) Ira runs.",
            "answer": "a",
            "question_type": 1.1,
        },
        "cobra": {
            "context": "x",
            "speaker": "Ira",
            "listener": "Bo",
            "statement": "Hm.",
            "offensive_allapp": 0,
        },
        "confaide": {"tier": "4", "head": "gift, June 3rd", "text": "Ira: gift on June 3rd.<END>"},
    }
    b = benchmarks[name]
    item = next(iter(b.items({"index": "1", **rows[name]}, **b.checked({}))))
    context = to_context(next(generate("tomi", 1)).story)
    model = ScriptedClient(
        lambda r: said("B") if "answer" in r.schema["properties"] else "no record"
    )
    given = asyncio.run(modes[mode](Asker(model, b, AnswerConfig()), item, context))
    assert b.answered(item, given.answer).status and model.requests
    plain_question = Asker(model, b, AnswerConfig()).request(b.prompt(item)).messages
    as_vanilla, told = (
        [r.messages for r in model.requests] == [plain_question],
        any(" fell back to vanilla: " in note for note in given.notes),
    )
    assert told == (as_vanilla and mode != "vanilla")
    if mode == "simulation":
        council = len(model.requests) == len(context.agents) + 1 and not given.notes
        assert told if name in ("tomi", "hitom") else council
    if mode in ("context", "simulation"):
        alone = asyncio.run(modes[mode](Asker(model, b, AnswerConfig()), item, None))
        assert model.requests[-1].messages == plain_question and any(
            "no context" in note for note in alone.notes
        )


# ---- figures


def test_a_run_is_tried_on_its_first_questions(own, tmp_path):
    words = ("hitom", f"--tom.file={own}", "--model.name=scripted/first", "--tom.name=tried")
    assert run(*words, "--tom.limit=3", out=tmp_path) == 0
    assert len(_read_outcomes(tmp_path / "tried/answers.jsonl")) == 3


def test_answers_that_are_hostile_stay_text(own, tmp_path, monkeypatch):
    monkeypatch.setattr(humanlm.models.settings, "ATTEMPTS", 1)
    nasty = "</td>|<script>alert(1)</script>|\n# A heading"
    humanlm.clients.names.scripts["hostile"] = lambda r: LLMError("malformed", nasty)
    words = (f"--tom.file={own}", "--model.name=scripted/hostile")
    assert run("hitom", *words, out=tmp_path) == 1
    text = (tmp_path / "hitom-vanilla-scripted_hostile/report.md").read_text()
    assert "alert(1)" in text and "<script>" not in text and "\n# A heading" not in text


# ---- commands


def test_dry_runs_write_nothing(own, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    for words in (
        [
            "eval",
            "tom",
            "hitom",
            f"--tom.file={own}",
            f"--tom.out={out}",
            "--tom.mode=vanilla,context",
        ],
        ["data", "stories", "tomi", f"--stories.out={out}"],
        ["data", "contexts", "hitom", f"--tom.file={own}", f"--tom.out={out}"],
    ):
        assert main([*words, "--dry-run"]) == 0
    assert not list(tmp_path.iterdir()) and "90, 90 to ask" in capsys.readouterr().out


@pytest.mark.parametrize(
    "mode, model, calls, said",
    [
        ("vanilla", "openai/gpt-4.1", 90, "price unknown"),
        ("debate", "openai/gpt-5-mini", 900, "~$"),
    ],
)
def test_a_dry_run_counts_calls_tokens_and_dollars_without_a_key(
    mode, model, calls, said, own, tmp_path, capsys, monkeypatch
):
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert (
        run(
            "hitom",
            f"--tom.file={own}",
            f"--model.name={model}",
            f"--tom.mode={mode}",
            "--dry-run",
            out=out,
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert (
        f"about {calls} calls, ~" in shown
        and f"~{calls * 2048:,} written" in shown
        and said in shown
    )
    assert not out.exists()


def test_stories_are_generated_run_and_parsed(tmp_path, capsys):
    for family, questions in (("tomi", 36), ("hitom", 30)):
        out = tmp_path / family
        assert main(["data", "stories", family, "--stories.n=6", f"--stories.out={out}"]) == 0
        file = next(path for path in out.iterdir() if path.suffix in (".txt", ".jsonl"))
        assert run(family, f"--tom.file={file}", out=tmp_path) == 0
        outcomes = _read_outcomes(tmp_path / f"{family}-vanilla-symbolic/answers.jsonl")
        assert len(outcomes) == questions and all(o.scores["correct"] for o in outcomes)
        assert (
            main(["data", "contexts", family, f"--tom.file={file}", f"--tom.out={tmp_path}"]) == 0
        )
        assert "6 of 6 texts parsed, 0 faults" in capsys.readouterr().out
        made, own_ = (
            json.loads(next(folder.glob("*.json")).read_text())
            for folder in (tmp_path / f"{family}-contexts-symbolic/files", out / "contexts")
        )
        assert made.keys() == own_.keys() == {"socialized_context", "story", "question", "answer"}
