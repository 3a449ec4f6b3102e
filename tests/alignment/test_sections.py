"The report of a run says what its numbers rest on, and holds what others wrote as text."

import math
import re
from pathlib import Path

import pytest
from pages import read

from humanlm.alignment.evaluation import Evaluation
from humanlm.alignment.sections import SECTIONS
from humanlm.core.basics import atomic_write, to_json, write_jsonl
from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score
from humanlm.evaluation.measured import ALL, PairedDifference, Result
from humanlm.evaluation.report import write_report

LEVELS = ("stance", "emotion", "goal")
MODELS = {
    "base": 0.0,
    "cold-start": 0.2,
    "response-only": 0.3,
    "humanlm": 0.6,
    "chance": 0.1,
    "ceiling": 0.8,
}
HOSTILE = (
    "</style></script><script>alert(1)</script></td></pre>"
    """<img src=//x.org onerror="z"><stance>' " & $x$ \u202e"""
)


def _result_rows() -> list[Result]:
    "Invented means"
    levels = {
        "state_alignment": (ALL, *LEVELS),
        "response_alignment": (ALL,),
        "reply_state_alignment": (ALL, *LEVELS),
    }
    return [
        Result(model, metric, level, 20, mean, max(0, mean - 0.05), mean + 0.05)
        for model, mean in MODELS.items()
        for metric, names in levels.items()
        for level in names
    ]


def log_lines() -> list[dict]:
    "Invented curves"
    cold = [{"stage": "cold-start", "step": step, "loss": 2 / step} for step in range(1, 9)]
    numbers = {
        "reward": 0.3,
        "reward/stance": 0.3,
        "reward/response": None,
        "parse/ok": 1.0,
        "judge/no_score": 0.0,
        "tokens/generated": 100.0,
        "completions/mean_length": 9.0,
    }
    return cold + [{"stage": "humanlm", "step": step} | numbers for step in range(1, 9)]


def make_run(folder: Path, text: str = "invented") -> Path:
    "Write a whole run folder, with `text` wherever a run has text of others"
    atomic_write(folder / "config.yaml", to_json(CONFIG | {"run": {"name": "r", "note": text}}))
    atomic_write(folder / "run.json", to_json(record(text)))
    atomic_write(folder / "data.md", f"# {text}\n\n| a | b |\n|--|--|\n| {text} | 2 |\n")
    atomic_write(
        folder / "results.json",
        to_json({"rows": _result_rows(), "paired": pairs()}),
    )
    write_jsonl(folder / "metrics.jsonl", log_lines())
    write_jsonl(folder / "examples.jsonl", examples(text))
    for model in ("base", "cold-start", "humanlm"):
        write_jsonl(folder / "evaluations" / f"{model}.jsonl", evaluations(text))
    return folder


CONFIG = {
    "data": {"source": "miniworld"},
    "judge": {"model": "oracle"},
    "model": {"name": "tiny"},
    "reward": {"extra_weight": 1.0},
}


def record(text: str) -> dict:
    calls = {
        "caller": text,
        "model": text,
        "calls": 2,
        "hits": 0,
        "tokens_in": 5,
        "tokens_out": 6,
        "cost": None,
    }
    return {
        "state": "finished",
        "name": text,
        "seed": 3,
        "data_fingerprint": "feedfacefeedface",
        "commit": text,
        "versions": {"humanlm": text},
        "machine": {"system": text},
        "seconds": {"data": 1.0, text: 2.0},
        "ledger": [calls],
    }


def pairs() -> list[PairedDifference]:
    return [
        PairedDifference("state_alignment", level, "humanlm", "cold-start", 20, 0.4, 0.3, 0.5)
        for level in (ALL, "stance")
    ]


def examples(text: str) -> list[Example]:
    talk = (Message("m", "user", text, text),)
    persona, states = Persona(text, text), {"stance": text}
    return [
        Example(f"e{i}", text, "test", text, f"c{i}", persona, talk, text, states=states)
        for i in range(6)
    ]


def evaluations(text: str) -> list[Evaluation]:
    def score(value, status="scored"):
        return Score("0", value, status, text, (text,), (0.5,), 0.1, text)

    def scores(i):
        return {
            "state_alignment": {"stance": score(i / 6)},
            "response_alignment": {"response": score(math.nan, "judge failed")},
            "reply_state_alignment": {"stance": score(0.0, "bad format")},
        }

    return [
        Evaluation(f"e{i}", f"c{i}", {"stance": text, "response": text}, scores(i))
        for i in range(6)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "r"), SECTIONS).read_text(
        "utf-8"
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> str:
    return write_report(
        make_run(tmp_path_factory.mktemp("runs") / "h", HOSTILE), SECTIONS
    ).read_text("utf-8")


# ---- what the page says


def test_it_opens_with_what_the_run_was(page):
    said = (
        page.index("Synthetic world"),
        page.index("Oracle judge"),
        page.index("Toy model"),
        page.index("<h2"),
    )
    assert list(said) == sorted(said) and "Missing from this run" not in page


def test_it_asks_for_nothing_and_runs_nothing(page):
    assert not re.findall(r'(?:href|src)="(?!#)|url\((?!#)|@import|https?:|<script', page)
    assert "default-src 'none'" in page.replace("&#x27;", "'") and len(page) < 1_000_000


# ---- hostile text


def test_hostile_text_stays_text(page, hostile):
    known, found = read(page, figures=True), read(hostile, figures=True)
    assert found.tags <= known.tags and found.attributes <= known.attributes
    assert not found.tags & {"script", "img", "stance"}
    assert "<script>alert(1)</script>" in found.text
