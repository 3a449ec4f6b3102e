"What a follow-up changes: numbers against plain torch, pages of hostile text, whole files."

import io
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pages import HOSTILE, read

from humanlm.core.basics import ConfigError, DataError, write_jsonl
from humanlm.data.trajectory import Completion
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.sdpo.analysis import (
    FOLLOWUPS,
    _read_cases,
    _reply_html,
    _save_study,
    _score_reply,
    _signal_figure,
    _SignalCase,
    _SignalConfig,
    _SignalRow,
    _SignalStudy,
    _write_replies,
    signals_command,
)
from humanlm.sdpo.hindsight import (
    AssistantReply,
    Followup,
    HindsightConfig,
    Interaction,
    contexts,
    write_interactions,
)
from humanlm.sdpo.method import signals

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
        reply="Bread is good.",
    ),
]
ROW = {
    "id": "a",
    "tag": "t",
    "raw_prompt": "p",
    "unrelated_followup": "u",
    "feedback_followup": "f",
}
SHARED = Path(os.environ.get("HUMANLM_DATA", "missing"), "sdpo_signal_cases", "cases.jsonl")


@pytest.fixture(scope="module")
def loaded():
    texts = [text for case in CASES for text in (case.raw_prompt, *case.followups.values())]
    return make_model(
        ModelConfig(template="chatml", vocab=400, hidden=32, layers=1, heads=2, kv_heads=2, mlp=64),
        texts,
    )


def _analyse(loaded, cases, config=_SignalConfig()):
    replies = _write_replies(loaded, cases, config)
    return _SignalStudy([_score_reply(loaded, *each) for each in zip(cases, replies)])


@pytest.fixture(scope="module")
def study(loaded):
    return _analyse(loaded, CASES, _SignalConfig(max_tokens=12))


# ---- cases

ENDINGS = [" Be brief.", " Write six sentences."]


@pytest.mark.parametrize(
    "row, message",
    [
        ({"tag": 3}, "row 1: tag must be text, got 3"),
        ({"raw_prompt": " "}, "raw_prompt is empty"),
    ],
)
def test_cases_are_checked(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        _read_cases(write_jsonl(tmp_path / "c.jsonl", [ROW | row]))


def test_a_line_break_that_was_written_out_is_one(tmp_path):
    rows = [
        ROW | {"raw_prompt": r"Summarise:\n\nIt rained."},
        ROW | {"id": "b", "raw_prompt": "print('\\n')\nWhat is this?"},
    ]
    assert [c.raw_prompt for c in _read_cases(write_jsonl(tmp_path / "c.jsonl", rows))] == [
        "Summarise:\n\nIt rained.",
        rows[1]["raw_prompt"],
    ]


@pytest.mark.parametrize(
    "packed",
    [
        lambda rows: rows,
        lambda rows: {"defaults": {}, "cases": rows},
        lambda rows: {"defaults": {"variant_suffix_pool": ENDINGS}, "cases": rows},
    ],
)
def test_the_published_file_and_one_list_are_read_as_they_are(packed, tmp_path):
    rows = [ROW | {"id": name} for name in "abc"]
    path = tmp_path / "signal_analysis_cases.json"
    path.write_text(json.dumps(packed(rows), indent=2))
    assert _read_cases(path) == _read_cases(write_jsonl(tmp_path / "c.jsonl", rows))
    drawn = _read_cases(path, 24, seed=123)
    assert len({case.id for case in drawn}) == 24 and {case.cluster for case in drawn} == {*"abc"}
    tails = {case.raw_prompt.removeprefix(ROW["raw_prompt"]) for case in drawn}
    assert tails == ({*ENDINGS} if ENDINGS[-1] in path.read_text() else {""})
    path.write_text("{")
    with pytest.raises(DataError, match="broken JSON"):
        _read_cases(path)


def test_logs_are_cases_whose_unrelated_follow_up_came_to_somebody_else(tmp_path, loaded):
    def logged(n, talk, followup, reply="Tea is good."):
        said = (
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": f"Question {n}"},
        )
        return Interaction(
            f"i{n}", said, AssistantReply(reply), Followup(followup), conversation_id=talk
        )

    rows = [
        logged(0, "x", "Shorter."),
        logged(1, "x", "Longer."),
        logged(2, "y", "Why?"),
        logged(3, "y", " "),
        logged(4, "z", "More.", ""),
    ]
    cases = _read_cases(write_interactions(tmp_path / "log.jsonl", rows))
    assert [(c.id, c.feedback_followup, c.unrelated_followup) for c in cases] == [
        ("i0 #0", "Shorter.", "Why?"),
        ("i1 #1", "Longer.", "Why?"),
        ("i2 #2", "Why?", "Shorter."),
    ]
    study = _analyse(loaded, cases)
    assert [r.text for r in study.rows] == ["Tea is good."] * 3 and cases[0].messages == list(
        rows[0].messages
    )
    expected = signals(*loaded, rows[:1])[0].advantage
    assert study.rows[0].signal("related") == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match="None of 2 interactions"):
        _read_cases(write_interactions(tmp_path / "log.jsonl", rows[:2]))


# ---- scores


def by_hand(model, prompt, ids):
    "Log-probabilities of all words at each place of a reply, [T, V], one row and no padding"
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0].double()
    return logits.log_softmax(-1)[len(prompt) - 1 : -1]


def test_signals_and_divergences_are_those_of_plain_torch(loaded, study):
    for row in study.rows:
        both = {
            name: contexts(loaded.tokenizer, row.case.messages, text)
            for name, text in row.case.followups.items()
        }
        plain, place = (
            by_hand(loaded.model, both["empty"].plain, row.token_ids),
            torch.arange(len(row.token_ids)),
        )
        assert row.plain == pytest.approx(plain[place, row.token_ids].tolist(), abs=1e-5)
        for name in FOLLOWUPS:
            after = by_hand(loaded.model, both[name].hindsight, row.token_ids)
            gained = after - plain
            assert row.signal(name) == pytest.approx(
                gained[place, row.token_ids].tolist(), abs=1e-5
            )
            assert row.kl[name] == pytest.approx(
                (-(plain.exp() * gained).sum(-1)).tolist(), abs=1e-5
            ), "minus the expected signal"


def test_the_signal_is_the_one_that_trains(loaded, study):
    rows = [r for r in study.rows if r.case.id == "a"]
    logged = [
        Interaction(
            "i",
            tuple(r.case.messages),
            AssistantReply(r.text or "x", tuple(r.token_ids)),
            Followup(r.case.feedback_followup),
        )
        for r in rows
    ]
    for row, found in zip(rows, signals(*loaded, logged)):
        assert (
            row.signal("related") == pytest.approx(found.advantage, abs=1e-5)
            and row.token_ids == found.ids
        )


def test_the_same_context_twice_gives_nothing(loaded):
    row = _score_reply(
        loaded,
        CASES[1],
        _write_replies(loaded, CASES[1:])[0],
        config=HindsightConfig("{followup}"),
    )
    assert row.signal("empty") == [0.0] * len(row.plain) and max(map(abs, row.kl["empty"])) < 1e-6


def test_a_reply_of_one_token_and_follow_ups_that_cannot_be_used(loaded):
    case = replace(CASES[0], unrelated_followup=" ", feedback_followup="no " * 400)
    row = _score_reply(loaded, case, Completion([5], "x", "length"))
    assert list(row.hindsight) == ["praise", "empty"] and len(row.plain) == 1
    assert row.skipped["unrelated"] == "empty follow-up" and row.skipped["related"].startswith(
        "follow-up too long"
    )
    lines = _SignalStudy([row]).lines()
    assert {line.followup for line in lines} == {"praise", "empty"} and all(
        math.isnan(line.interval.low) for line in lines
    )
    assert "Not scored: empty follow-up" in _reply_html(row, "unrelated")


# ---- sums


def told(case, plain, **hindsight):
    return _SignalRow(
        case, "", list(range(len(plain))), [f"t{i}" for i in range(len(plain))], plain, hindsight
    )


def test_a_contrast_compares_replies_with_themselves():
    rows = [
        told(
            replace(CASES[0], id=f"c{i}", tag="even" if i % 2 == 0 else "odd"),
            [0.0, 0.0],
            related=[i + 1.0, -i - 1.0],
            unrelated=[float(i), -float(i)],
            empty=[0.0, math.nan],
        )
        for i in range(6)
    ]
    lines = {line[:3]: line.interval for line in _SignalStudy(rows).lines()}
    assert (
        lines["all", "related − unrelated", "size"][:3] == pytest.approx((1, 1, 1))
        and lines["all", "related", "size"].value == 3.5
    )
    assert (
        lines["all", "related", "size"].low < 3.5 - 0.5
        and lines["odd", "related", "size"].value == 4
        and lines["odd", "related", "size"].n == 3
    )
    assert (
        lines["all", "empty", "mean"].value == 0
        and lines["all", "related", "moved"].value == 1
        and lines["all", "related", "total"].value == 0
    )


def test_replies_to_one_case_are_one_cluster():
    rows = [told(CASES[0], [0.0], related=[float(i)]) for i in range(4)]
    assert math.isnan(
        next(line for line in _SignalStudy(rows).lines() if line.metric == "mean").interval.low
    )
    talks = [
        replace(row, case=replace(row.case, id=f"c{i}", cluster=cluster))
        for i, (row, cluster) in enumerate(zip(rows, "xxyy"))
    ]
    wide, narrow = (
        next(line for line in _SignalStudy(some).lines() if line.metric == "mean").interval
        for some in (talks, [replace(row, case=replace(row.case, cluster="")) for row in talks])
    )
    assert (wide.low, wide.high) == (0.5, 2.5) and narrow.value == wide.value == 1.5, (
        "replies of one conversation are drawn together"
    )


# ---- pictures and pages


@pytest.mark.parametrize("text", HOSTILE)
def test_what_models_and_files_say_stays_text(text):
    case = _SignalCase(text, text, text, text, text)
    row = _SignalRow(
        case,
        text,
        [1, 2],
        [text, text],
        [-1.0, -1.0],
        {"related": [-0.5, math.nan], "empty": [-1.5, -1.0]},
    )
    study = _SignalStudy([row])
    read(_reply_html(row, "related"))
    _signal_figure(study).savefig(io.BytesIO())
    study.table().markdown()


# ---- files and the command


def test_results_are_whole_or_absent(tmp_path, study):
    folder = _save_study(study, tmp_path / "out")
    kept = json.loads((folder / "signals.json").read_text())
    assert {p.name for p in folder.iterdir()} == {"signals.html", "signals.json", "signals.png"}
    assert kept["replies"][0]["plain"] == study.rows[0].plain
    with pytest.raises(TypeError):
        _save_study(replace(study, about={"bad": object()}), folder)
    assert json.loads((folder / "signals.json").read_text()) == kept


def test_a_folder_of_other_things_is_left_alone(tmp_path, study):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="holds other things"):
        _save_study(study, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


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
    assert "its numbers mean nothing" in shown and all(
        f"related − {name}" in shown for name in FOLLOWUPS[1:]
    )
    assert json.loads((tmp_path / "out" / "signals.json").read_text())["about"][
        "warning"
    ].startswith("The tiny model is random")
