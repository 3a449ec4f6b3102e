"""An audit finds the one habit a judge has, counts what fails, and never breaks."""

import json

import pytest
import warm

from humanlm.clients.ledger import Ledger
from humanlm.core.basics import run_sync
from humanlm.core.trajectory import Score
from humanlm.judges import main
from humanlm.rewards.audit import (
    _load_probes,
    _probe_texts,
    audit,
)

PROBES = _load_probes()
WORTH = {
    "match": 0.9,
    "paraphrase": 0.85,
    "weaker": 0.45,
    "padded": 0.45,
    "negation": 0.1,
    "off": 0.05,
}
ROLE_OF = {text: role for p in PROBES for role, text in _probe_texts(p).items()}


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
    assert [f.measure for f in found.findings if f.verdict != "ok"] == concerns


# ---- the command


def command(*line, cwd=None):
    return warm.run("-m", "humanlm.judges", *line, cwd=cwd or ".")


def test_command_prints_a_table_and_keeps_json(tmp_path):
    done = command(
        "audit",
        "--judge.model",
        "rule",
        "--audit.out",
        "deep/found.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "112 questions" in done.stdout
    kept = json.loads((tmp_path / "deep/found.json").read_text())
    assert (kept["judge"], kept["questions"]) == ("rule", 112)
    assert all(f"\n{f['measure']} " in done.stdout for f in kept["findings"])
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]


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
