"The best states so far: what enters, what replaces what, which row is asked next."

import math
from dataclasses import replace

import pytest

from humanlm.alignment.grpo import alignment_method
from humanlm.alignment.modes import _Entry, _PrefixMap, training_rows
from humanlm.core.basics import DataError, run_sync
from humanlm.core.records import sample_examples
from humanlm.core.trajectory import Score
from humanlm.hierarchy.levels import HIERARCHY, Hierarchy
from humanlm.rewards.judges import RuleJudge
from humanlm.training.policies import ScriptedPolicy
from humanlm.training.run import read_settings
from humanlm.training.sampling import repeat_rows

ORDER = [{"level": "stance", "example_id": f"e{i}"} for i in range(6)]


def states(threshold=0.9):
    levels = [replace(d, threshold=d.threshold and threshold) for d in HIERARCHY]
    return _PrefixMap(Hierarchy(levels), ORDER)


def offered(*entries):
    found = states()
    for reward, step, text in entries:
        found.offer(_Entry("stance", "e1", text, reward, step))
    return found.entries["stance", "e1"]


# ---- what enters (acceptance 6)


@pytest.mark.parametrize(
    "reward,text,enters",
    [
        (0.9, "x", True),
        (1.0, "x", True),
        (0.8999, "x", False),
        (math.nan, "x", False),
        (1.0, "", False),
        (1.0, " \n", False),
    ],
)
def test_nothing_below_the_threshold_and_nothing_empty_enters(reward, text, enters):
    assert states().offer(_Entry("stance", "e1", text, reward, 0)) is enters


def test_the_threshold_is_the_levels_own():
    assert states().offer(_Entry("stance", "e1", "x", 0.5, 0)) is False and states(
        threshold=0.5
    ).offer(_Entry("stance", "e1", "x", 0.5, 0))
    assert states(threshold=0.0).offer(_Entry("response", "e1", "x", 1.0, 0)) is False, (
        "nothing is ever built on the reply"
    )


@pytest.mark.parametrize(
    "entries,kept",
    [
        ([(0.9, 1, "a"), (1.0, 2, "b")], "b"),
        ([(1.0, 1, "a"), (0.9, 2, "b")], "a"),
        ([(1.0, 1, "a"), (1.0, 2, "b")], "b"),
        ([(1.0, 2, "a"), (1.0, 1, "b")], "a"),
        ([(1.0, 1, "a"), (0.95, 2, "b"), (0.1, 3, "c")], "a"),
    ],
)
def test_best_ever_and_the_newest_among_equals(entries, kept):
    assert offered(*entries).field == kept


# ---- which row is asked


def with_stances(*examples):
    found = states()
    for example in examples:
        found.offer(_Entry("stance", example, f"stance of {example}", 1.0, 0))
    return found


def test_the_rule_of_choice():
    found = with_stances("e1", "e4")
    assert found.choose("stance", "e0") == ("stance", "e0", ())
    assert found.choose("emotion", "e1") == (
        "emotion",
        "e1",
        (("stance", "stance of e1"),),
    )
    assert found.choose("emotion", "e2")[:2] == ("emotion", "e4"), (
        "the next example that has something to stand on"
    )
    assert found.choose("emotion", "e5")[:2] == ("emotion", "e1"), "the order is a circle"
    assert found.choose("emotion", "e2", [("emotion", "e4")])[:2] == ("emotion", "e1")
    assert found.choose("emotion", "e2", [("emotion", "e4"), ("emotion", "e1")])[:2] == (
        "stance",
        "e2",
    ), "one level down"
    assert found.choose("response", "e2")[:2] == ("emotion", "e4"), (
        "as many levels down as it takes"
    )


def test_a_prefix_is_the_chain_that_was_written_not_a_mixture():
    found = with_stances("e1")
    found.offer(_Entry("emotion", "e1", "calm", 1.0, 1, (("stance", "stance of e1"),)))
    found.offer(_Entry("stance", "e1", "another stance", 1.0, 2))
    assert found.choose("belief", "e1")[2] == (
        ("stance", "stance of e1"),
        ("emotion", "calm"),
    )


# ---- on disk


def test_saved_and_loaded_it_is_the_same(tmp_path):
    found = with_stances("e1", "e2")
    found.offer(
        _Entry("emotion", "e1", 'hostile "text"\n</emotion>\ud800 ü', 0.95, 7, (("stance", "a"),))
    )
    path = found.save(tmp_path / "prefixes.json")
    again = states()
    again.load(path)
    assert again.entries.keys() == found.entries.keys()
    emotion = again.entries["emotion", "e1"]
    assert emotion[:2] == found.entries["emotion", "e1"][:2]
    assert emotion.before == (("stance", "a"),)
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob("*.tmp*"))


def test_what_no_longer_reaches_a_raised_threshold_is_not_built_on(tmp_path):
    found = states(threshold=0.5)
    for reward, example in ((0.6, "e1"), (0.95, "e2")):
        found.offer(_Entry("stance", example, f"stance of {example}", reward, 0))
    path, strict = found.save(tmp_path / "prefixes.json"), states(threshold=0.9)
    strict.load(path)
    assert [e.reward for e in strict.entries.values()] == [0.95]
    assert strict.choose("emotion", "e1")[:2] == ("emotion", "e2")
    again = states(threshold=0.5)
    again.load(path)
    assert len(again.entries) == 2


def test_a_step_asks_for_the_prefixes_that_it_keeps():
    _, config = read_settings(
        [
            "--config=configs/humanlm-mini.yaml",
            "--run.methods=[prefix-chaining]",
            "--hierarchy.levels=[stance,goal,response]",
            "--rollout.group_size=2",
        ]
    )
    examples = [replace(e, id=f"e{i}") for i, e in enumerate(sample_examples()[:4])]
    rows = training_rows(examples, config.hierarchy, "prefix-chaining")
    method = alignment_method(config, RuleJudge(), rows, examples, "prefix-chaining")
    method.memory.offer(_Entry("stance", "e0", "for it", 1.0, 0))
    step = repeat_rows([method.memory.rows["goal", e.id] for e in examples], 2)
    said = run_sync(
        method.rollout(
            step, ScriptedPolicy(lambda row, copy: f"<{row['level']}>so {copy}</{row['level']}>")
        )
    )
    assert [(t.level, t.example_id) for t in said[::2]] == [
        ("goal", "e0"),
        ("stance", "e1"),
        ("stance", "e2"),
        ("stance", "e3"),
    ] and method.memory.moved == 0.75
    scored = [replace(t, scores={t.level: Score("0", 1.0, "scored")}) for t in said]
    assert [(n.level, n.before) for n in method.memory.note(scored)[::2]] == [
        ("goal", (("stance", "for it"),)),
        *[("stance", ())] * 3,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"levels": [], "entries": [{"level": 1}]}',
    ],
)
def test_a_broken_file_is_refused_and_nothing_changes(tmp_path, text):
    (tmp_path / "prefixes.json").write_text(text)
    found = with_stances("e1")
    with pytest.raises(DataError, match="prefixes.json"):
        found.load(tmp_path / "prefixes.json")
    assert len(found.entries) == 1
