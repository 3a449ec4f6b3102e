"What a follow-up changes: numbers against plain torch, pages of hostile text, whole files."

import json
import os
from pathlib import Path

import pytest
import torch
from pages import HOSTILE, read

from humanlm.core.html import markdown_html
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import generate
from humanlm.sdpo.analysis import (
    FOLLOWUPS,
    _case_html,
    _scored_replies,
    _ScoredReply,
    _signal_results,
    _signal_tables,
    _SignalCase,
    signals_command,
)
from humanlm.sdpo.hindsight import contexts

CASES = [
    _SignalCase(
        "a", "reinforce", "Write a note about tea.", "What is 27*4?", "Nice and short, keep it."
    ),
    _SignalCase(
        "b",
        "constrain",
        "Write a long note about bread.",
        "It rains.",
        "Shorter, please.",
    ),
]
SHARED = Path(os.environ.get("HUMANLM_DATA", "missing"), "sdpo_signal_cases", "cases.jsonl")


@pytest.fixture(scope="module")
def loaded():
    texts = [text for case in CASES for text in (case.raw_prompt, *case.followups.values())]
    return make_model(
        ModelConfig(template="chatml", vocab=400, hidden=32, layers=1, heads=2, kv_heads=2, mlp=64),
        texts,
    )


@pytest.fixture(scope="module")
def study(loaded):
    return _scored_replies(loaded, CASES, 12)


# ---- cases


# ---- scores


def by_hand(model, prompt, ids):
    "Log-probabilities of all words at each place of a reply, [T, V], one row and no padding"
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0].double()
    return logits.log_softmax(-1)[len(prompt) - 1 : -1]


def test_signals_are_those_of_plain_torch(loaded, study):
    for row in study:
        both = {
            name: contexts(loaded.tokenizer, row.case.messages, text)
            for name, text in row.case.followups.items()
        }
        seed, prompt = CASES.index(row.case), both["empty"].plain
        ids = generate(*loaded, [prompt], 12, seed=[seed])[0].ids
        plain, place = (
            by_hand(loaded.model, both["empty"].plain, ids),
            torch.arange(len(ids)),
        )
        for name in FOLLOWUPS:
            after = by_hand(loaded.model, both[name].hindsight, ids)
            assert row.signals[name] == pytest.approx(
                (after - plain)[place, ids].tolist(), abs=1e-5
            )


# ---- sums


# ---- pictures and pages


@pytest.mark.parametrize("text", HOSTILE)
def test_what_models_and_files_say_stays_text(text):
    case = _SignalCase(text, text, text, text, text)
    row = _ScoredReply(case, text, [text, text], {"related": [0.5, 0.1], "empty": [-0.5, 0.0]})
    read(_case_html(row, 1.0))
    read(markdown_html(_signal_tables(_signal_results([row]))))


# ---- files and the command


@pytest.mark.skipif(not SHARED.is_file(), reason="needs sdpo_signal_cases below HUMANLM_DATA")
def test_the_command_measures_the_published_cases(tmp_path, capsys):
    argv = [
        "--model.name",
        "tiny",
        "--model.hidden",
        "32",
        "--model.layers",
        "1",
        "--signals.cases",
        str(SHARED),
        "--signals.out",
        str(tmp_path / "out"),
        "--signals.max_tokens",
        "24",
    ]
    assert signals_command([*argv, "--dry-run"]) == 0 and not (tmp_path / "out").exists()
    assert "7 cases" in capsys.readouterr().out
    assert signals_command(argv) == 0
    shown = capsys.readouterr().out
    assert all(f"related − {name}" in shown for name in FOLLOWUPS[:-1])
    assert len(json.loads((tmp_path / "out" / "signals.json").read_text())["replies"]) == 7
