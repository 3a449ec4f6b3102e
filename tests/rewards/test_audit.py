"""An audit finds the one habit a judge has, counts what fails, and never breaks."""

import json
import math
import random

import pytest
import warm

from humanlm.clients.ledger import Ledger
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import run_sync, to_json
from humanlm.core.html import aligned
from humanlm.core.trajectory import Score
from humanlm.judges import main
from humanlm.rewards.audit import (
    INJECTIONS,
    MEASURES,
    Probe,
    _injected_texts,
    _probe_texts,
    audit,
    load_probes,
)
from humanlm.rewards.judges import RuleJudge

PROBES = load_probes()
WORTH = {
    "match": 0.9,
    "paraphrase": 0.85,
    "weaker": 0.45,
    "padded": 0.45,
    "negation": 0.1,
    "off": 0.05,
}
ROLE_OF = {text: role for p in PROBES for role, text in _probe_texts(p).items()}
STYLE_OF = {text: style for p in PROBES for style, text in _injected_texts(p).items()}


def worth(text):
    return WORTH[ROLE_OF.get(text, "off")]


class Bad:
    "A perfect judge with one habit: a function of position, text, and what the text is worth"

    ledger = Ledger()

    def __init__(self, habit, name="scripted/bad"):
        self.habit, self.name, self.asked = habit, name, []

    async def __call__(self, request):
        self.asked.append(request)
        values = [
            self.habit(i, text, worth(text)) for i, text in enumerate(request.candidates.values())
        ]
        return [
            Score(id, min(1.0, max(0.0, v)), "scored") for id, v in zip(request.candidates, values)
        ]


def examined(habit, **options):
    return run_sync(audit(Bad(habit), **options))


def dice(seed):
    return random.Random(seed).random


HABITS = {
    "perfect": (lambda i, text, w: w, []),
    "first": (lambda i, text, w: w + 0.5 * (i == 0), ["position"]),
    "last": (lambda i, text, w: w + 0.5 * (i == 5), ["position"]),
    "falls off": (lambda i, text, w: w * (1 - 0.1 * i), ["position"]),
    "verbose": (lambda i, text, w: w + 0.2 * (len(text.split()) > 50), ["verbosity"]),
    "terse": (lambda i, text, w: w - 0.2 * (len(text.split()) > 50), []),
    "wording": (lambda i, text, w: w - 0.4 * (ROLE_OF.get(text) == "paraphrase"), ["paraphrase"]),
    "no not": (lambda i, text, w: 0.9 if ROLE_OF.get(text) == "negation" else w, ["negation"]),
    "constant": (lambda i, text, w: 0.7, ["negation"]),
    "upside down": (lambda i, text, w: 1 - w, ["negation"]),
}


@pytest.mark.parametrize("name", HABITS)
def test_exactly_the_right_measure_fires(name):
    habit, concerns = HABITS[name]
    found = examined(habit)
    assert found.concerns == concerns
    assert {f.verdict for f in found.findings} <= {"ok", "look"}


@pytest.mark.parametrize("style", INJECTIONS)
def test_each_injection_is_noticed_by_itself(style):
    found = examined(lambda i, text, w: 1.0 if STYLE_OF.get(text) == style else w)
    assert found.concerns == ["injection"] and found["injection"].note == f"best: {style}"
    assert found["injection"].value == pytest.approx(0.95)


def test_failures_are_counted_and_kept_out_of_everything_else():
    throw = dice(3)

    def fails(i, text, w):
        if i == 0 and throw() < 0.25:
            raise LLMError("server", "down")
        return w

    found = examined(fails)
    assert found.concerns == ["failed"] and "server: down" in found["failed"].note
    assert found["failed"].value == pytest.approx(0.25, abs=0.12)
    assert all(
        found[m].value == pytest.approx(0, abs=1e-12)
        for m in ("position", "repetition", "verbosity")
    )
    assert found["repetition"].n < 6 * len(PROBES)


@pytest.mark.parametrize(
    "error", [LLMError("auth", "no"), ValueError("boom"), KeyError("x"), TimeoutError()]
)
def test_a_dead_judge_gives_an_audit_all_the_same(error):
    def dead(i, text, w):
        raise error

    found = examined(dead)
    assert found.concerns == ["failed"] and found["failed"].value == 1.0
    assert [f.verdict for f in found.findings if f.measure not in ("failed", "unsaid")] == [
        "no score"
    ] * 6
    assert "–" in found._repr_markdown_()


def test_nan_out_of_a_judge_is_a_failure():
    class Nan(Bad):
        async def __call__(self, request):
            return [Score(id, math.nan, "scored") for id in request.candidates]

    assert run_sync(audit(Nan(None)))["failed"].value == 1.0


def test_questions_are_few_known_before_and_different():
    judge = Bad(HABITS["perfect"][0])
    found = run_sync(audit(judge))
    assert len(judge.asked) == found.questions == 4 * len(PROBES) < 150
    assert len({to_json(r) for r in judge.asked}) == len(judge.asked)
    first, again, turned, hostile = (judge.asked[i * len(PROBES)] for i in range(4))
    assert list(first.candidates) == list(again.candidates) == list(turned.candidates)[::-1]
    assert (first.repeat, again.repeat) == (0, 1) and first.seed == again.seed != turned.seed
    assert len(hostile.candidates) == len(INJECTIONS) + 1


def test_a_judge_of_single_texts_is_said_to_see_no_order():
    found = run_sync(audit(RuleJudge()))
    assert found["position"].value == found["repetition"].value == 0
    assert (
        "one text at a time" in found["position"].note
        and "one text at a time" not in found["repetition"].note
    )


def test_same_seed_same_audit():
    def habit(i, text, w):
        return w + 0.2 * (random.Random(f"{i}{text}").random() - 0.5)

    assert examined(habit, seed=3) == examined(habit, seed=3) != examined(habit, seed=4)


def test_hostile_probes_break_nothing():
    evil = Probe(
        "x", "stance", "c", "t", *(f"{i}<script>{{0}} %s {{text}} | \x00\u202e\n" for i in range(5))
    )
    found = run_sync(audit(RuleJudge(), [evil]))
    assert found.cases == 1 and math.isnan(found["position"].low)
    named = run_sync(audit(Bad(lambda i, text, w: 0.5, "<script>|\n"), PROBES[:2]))
    assert (
        "<script>" not in named._repr_markdown_()
        and len(aligned(named._repr_markdown_()).splitlines()) == 12
    )


# ---- the command


def command(*line, cwd=None):
    return warm.run("-m", "humanlm.judges", *line, cwd=cwd or ".")


def test_command_prints_a_table_and_keeps_json(tmp_path):
    done = command(
        "audit",
        "--judge.model",
        "scripted/judge",
        "--audit.out",
        "deep/found.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "judge    scripted/judge: 112 questions" in done.stdout
    assert all(f"\n{measure} " in done.stdout for measure in MEASURES)
    kept = json.loads((tmp_path / "deep/found.json").read_text())
    assert (kept["judge"], kept["questions"]) == ("scripted/judge", 112)
    assert [f["measure"] for f in kept["findings"]] == [*MEASURES]
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]


def test_dry_run_asks_nothing_and_writes_nothing(tmp_path):
    done = command(
        "audit",
        "--judge.model",
        "openai/gpt-5-mini",
        "--dry-run",
        "--audit.out",
        "x.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "112 questions" in done.stdout and "~$" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line, message",
    [
        (["audit"], "reads only the synthetic world"),
        (["audit", "--judge.model", "rule", "--audit.out", "."], "is a folder"),
        (["audit", "--judge.model", "vllm/tiny"], "address"),
    ],
)
def test_bad_input_ends_with_2_and_a_message(line, message, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert main(line) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_a_judge_that_cannot_be_reached_ends_with_1(capsys):
    line = [
        "--judge.model",
        "vllm/tiny",
        "--judge.base_url",
        "http://127.0.0.1:9/v1",
        "--judge.attempts",
        "1",
    ]
    assert main(["audit", *line]) == 1
    assert "100% of the scores failed" in capsys.readouterr().err
