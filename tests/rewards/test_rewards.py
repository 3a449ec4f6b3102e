"Each candidate gets its own score, faults are told apart, and what nobody knows stays unknown."

import asyncio
import math
from dataclasses import replace

import pytest

from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score, Trajectory, Turn
from humanlm.hierarchy.parsing import parse
from humanlm.hierarchy.prompts import make_rows
from humanlm.rewards.reward import (
    AlignmentReward,
    _reading,
    combine,
    requests_by_row,
)
from humanlm.rewards.scoring import JudgeError
from humanlm.training.advantages import group_advantages

CONTEXT = (
    Message(
        "m0", name="ann", content="Shall we close the old bridge for cars from next spring on?"
    ),
)
EXAMPLES = [
    Example(
        f"e{i}",
        "test",
        "train",
        "u",
        f"c{i}",
        Persona("u", "text"),
        CONTEXT,
        f"No, keep it open, number {i}.",
    )
    for i in range(3)
]
ROWS = make_rows(EXAMPLES, levels=["stance", "response"])
REQUESTS = requests_by_row(ROWS, EXAMPLES)


class ByText:
    "A judge that reads the score from the text, and remembers what it was asked"

    name, ledger = "by text", None

    def __init__(self):
        self.requests = []

    async def __call__(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        if "fail" in " ".join(request.candidates.values()):
            raise ConnectionError("no network")
        return [
            Score(i, float(text), "scored", "read")
            for i, text in reversed(request.candidates.items())
        ]


def make(text, row="e0:stance", group=0, n=0):
    level = row.split(":")[1]
    parsed = parse(text, level)
    return Trajectory(
        f"{row}/{n}",
        row,
        group,
        1,
        level,
        (),
        [],
        [1],
        [True],
        text=text,
        fields=parsed.fields,
        parse_status=parsed.status,
    )


def tag(text, level="stance"):
    return f"<{level}>{text}</{level}>"


def run(judge, batch, **kw):
    return asyncio.run(AlignmentReward(judge, REQUESTS, **kw)(batch))


def test_twins_empty_and_broken_share_one_call_with_one_candidate():
    judge = ByText()
    values, scored = run(
        judge,
        [make(tag("0.5")), make(tag("0.5"), n=1), make(tag(""), n=2), make("<stance>0.9", n=3)],
    )
    assert [len(r.candidates) for r in judge.requests] == [1]
    assert values[:, 0].tolist() == [0.5, 0.5, 0, 0]
    statuses = [t.scores["stance"].status for t in scored]
    assert (
        statuses[:2] == ["scored"] * 2
        and len({*statuses[2:]}) == 2
        and "scored" not in statuses[2:]
    )
    assert group_advantages(values[:2, 0], [0, 0]).tolist() == [0, 0]


class Silent(ByText):
    "Says of every stance that the truth says nothing about it"

    async def __call__(self, request):
        found = await super().__call__(request)
        return (
            [Score(s.id, math.nan, "unsaid", "") for s in found]
            if request.level == "stance"
            else found
        )


def test_a_fault_is_excused_where_the_truth_says_nothing_and_nowhere_else():
    "Without a stance it is as good as its sibling, without a reply it is not"

    def both(stance, reply, n):
        t = make(tag(reply, "response"), "e0:response", n=n)
        return replace(
            t,
            fields={k: v for k, v in (("stance", stance), ("response", reply)) if v},
            parse_status="ok" if stance and reply else "missing",
        )

    batch = [both("0.5", "0.5", 0), both("", "0.5", 1), both("0.5", "", 2)]
    asked = requests_by_row(
        [r | {"levels": ("stance", "response")} for r in ROWS if r["level"] == "response"], EXAMPLES
    )

    def values(judge):
        return asyncio.run(AlignmentReward(judge, asked, levels=("stance", "response"))(batch))

    silent, scored = values(Silent())
    assert silent[:, 0].tolist() == [0.5, 0.5, 0.0]
    assert [t.scores["stance"].status for t in scored] == ["unsaid"] * 3 and scored[2].scores[
        "response"
    ].value == 0
    assert values(ByText())[0][:, 0].tolist() == [0.5, 0.25, 0.25]


def test_judge_fault_is_nan_for_its_group_only():
    values, scored = run(
        ByText(), [make(tag("fail")), make("broken", n=1), make(tag("0.4"), "e1:stance", 1)]
    )
    assert math.isnan(values[0, 0]) and values[1:, 0].tolist() == [0, 0.4]
    assert (
        "judge failed" in scored[0].errors[0]
        and "no network" in scored[0].errors[0]
        and scored[2].errors == ()
    )
    assert combine(values, [1.0])[2] == 0.4 and group_advantages(
        values[:2, 0], [0, 0]
    ).tolist() == [0, 0]


def test_too_many_faults_stop_the_run():
    batch = [make(tag("fail")), make(tag("0.4"), "e1:stance", 1)]
    with pytest.raises(JudgeError, match="no network"):
        run(ByText(), batch, max_failed_share=0.4)


# ---- following a composed thought


def thinker(thought, text, group=0, n=0):
    return replace(
        make(tag(text, "response"), "e0:response", group, n),
        turns=(Turn("thought", thought), Turn("policy", text)),
    )


class Reads:
    "A judge that finds a state in a reply where its words stand there, one state at a time"

    name, ledger = "reads", None

    def __init__(self):
        self.requests = []

    async def __call__(self, request):
        self.requests.append(request)
        if "down" in request.truth:
            raise ConnectionError("no network")
        return [
            Score(i, float(request.truth in text), "scored", "")
            for i, text in request.candidates.items()
        ]


class ReadsAll(Reads):
    "The same for all states at once, as model judges do"

    async def aspects(self, request):
        self.requests.append(request)
        wanted = dict(line.split(": ") for line in request.truth.splitlines())
        return {
            level: [
                Score(i, float(wanted[level] in text), "scored", "")
                for i, text in request.candidates.items()
            ]
            for level in request.levels
        }


@pytest.mark.parametrize("judge,calls", [(Reads(), 3), (ReadsAll(), 2)])
def test_reading_compares_a_reply_with_its_own_thought_and_never_with_the_truth(judge, calls):
    first, other = "<stance>keep it<goal>win", "<stance>close it"
    batch = [
        thinker(first, "keep it, to win"),
        thinker(first, "keep it", n=1),
        thinker(other, "keep it", 1),
        thinker(first, "", n=2),
        make(tag("0.5")),
    ]
    assert asyncio.run(_reading(batch, judge)) == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert len(judge.requests) == calls and all(
        EXAMPLES[0].reply not in request.truth for request in judge.requests
    )
