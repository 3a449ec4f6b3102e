"The loop: assistants learn from whoever plays the people, and then meet the people"

from pathlib import Path

import pytest

from experiments.loop import (
    ALIGNMENTS,
    OUTCOMES,
    _LoopStudy,
    _persons,
    recipe,
    scenes,
)
from humanlm.evaluation.outcome import Arms
from humanlm.training.experiment import Trial
from humanlm.training.run import fit, read_settings

TINY = """
run: {recipe: "experiments.loop:recipe", name: seed-0, methods: [sft]}
loop: {tasks: 2, test_n: 2, dialogues: 200, updates: 20}
data: {max_train: 200, max_test: 4}
world: {users: 36, replies_per_user: 12}
model: {hidden: 32, heads: 2, kv_heads: 2, mlp: 64, vocab: 700}
hierarchy: {prompt: short, state_tokens: 8, response_tokens: 12, thought_tokens: 16}
sft: {lesson_steps: 2, polite_steps: 1, reply_steps: 1, batch: 8}
judge: {model: rule}
"""


@pytest.fixture(scope="module")
def people():
    return {
        part: scenes(["advice", "appeal"], part, n) for part, n in (("train", 60), ("test", 30))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    "A run of two simulators in miniature that was asked for the loop"
    place = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("tiny.yaml").write_text(TINY)
        fit("tiny.yaml")
        trial = Trial("", 0, read_settings(["--config", "tiny.yaml"])[1])
        _LoopStudy(recipe).after(trial)
        yield trial


def test_a_finished_run_is_asked_for_everybody_once_and_a_killed_one_goes_on(finished):
    study = _LoopStudy(recipe)
    assert study.is_done(finished)
    kept = finished.folder / "scenes" / "sft-train.jsonl"
    lost = [finished.folder / "assistants" / name for name in ("sft.json", "sft-followups.json")]
    stamp, before = kept.stat().st_mtime_ns, [path.read_text() for path in lost]
    lost[1].unlink()
    study.after(finished)
    assert (
        kept.stat().st_mtime_ns == stamp and [path.read_text() for path in lost] == before
    )  # nothing asked again, and the same is learned


def test_the_outcome_holds_a_matrix_an_alignment_for_everybody_and_correlations(finished):
    found = _LoopStudy(recipe).complete([finished], Arms([], {}))
    everybody = _persons(finished.settings)
    metrics = {(row["model"], row["metric"]) for row in found["assistants"]}
    assert {
        (who, f"{what} {whom}")
        for who in everybody
        for whom in everybody
        for what in ("with", "truth with")
    } <= metrics
    assert {p["person"]: set(ALIGNMENTS) <= p.keys() for p in found["points"]} == dict.fromkeys(
        everybody, True
    )
    assert {(row["among"], row["outcome"]) for row in found["correlations"]} == {
        (a, o) for a in ("all", "trained") for o in OUTCOMES
    }


def points(score):
    "Eight simulators in three seeds, their alignment from 0 to 1"
    return [
        {
            "person": f"s{i}",
            "seed": seed,
            **dict.fromkeys(ALIGNMENTS, i / 7),
            "score": score(i, seed),
        }
        for i in range(8)
        for seed in range(3)
    ]
