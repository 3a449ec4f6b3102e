"What is shown stays text, missing scores are never numbers, and pages stand alone."

import math
from dataclasses import replace

import pytest
from pages import HOSTILE, read

from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score, Trajectory
from humanlm.data.viz import (
    _push,
    example_html,
    group_html,
    score_mark,
)


def trajectory(
    text="for it", value=0.5, advantage=0.0, step=0, level="stance", group=0, **more
) -> Trajectory:
    "An invented sample of one token"
    score = Score(
        "0",
        value,
        more.pop("status", "scored"),
        more.pop("reason", "because"),
        ("point",),
        (value,),
    )
    return Trajectory(
        f"{step}{level}{group}{text}",
        "r1/stance",
        group,
        step,
        level,
        (),
        [1],
        [2],
        [True],
        text=text,
        scores={level: score},
        advantage=advantage,
        **more,
    )


# ---- nothing leaves its place


@pytest.mark.parametrize("text", HOSTILE)
def test_a_score_stays_text(text):
    score = Score(text, 0.5, text, text, (text,), (1.0,), 0.2, text)
    read(score_mark(score))


@pytest.mark.parametrize("text", HOSTILE)
def test_an_example_stays_text(text):
    persona = Persona(text, fields={text: text})
    talk = (Message(text, text, text, text),)
    read(
        example_html(
            Example(text, text, text, text, text, persona, talk, text, states={text: text})
        )
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_a_training_sample_stays_text(text):
    samples = [
        replace(trajectory(text, reason=text, status=text, errors=(text,)), row_id=text, level=text)
    ]
    read(group_html(samples))


# ---- no score is not zero


@pytest.mark.parametrize(
    "score", [None, math.nan, *(Score("0", math.nan, s) for s in ("judge failed", "over budget"))]
)
def test_a_missing_score_says_so(score):
    shown = score_mark(score)
    assert "no score" in shown and "repeating-linear-gradient" in shown
    assert "0.00" not in shown and "nan" not in shown


def test_an_advantage_that_is_missing_is_not_a_push():
    page = group_html(
        [trajectory("a", advantage=math.nan), trajectory("b", value=math.nan, advantage=math.nan)]
    )
    assert "none" in page and "no push" in page and "nan" not in page


# ---- choosing


def test_token_advantages_are_averaged():
    t = replace(trajectory(), completion_ids=[1, 2], mask=[True, True], advantage=[1.0, 0.0])
    assert _push(t) == 0.5 and "+0.50" in group_html([t])
    assert math.isnan(_push(replace(t, completion_ids=[], mask=[], advantage=[])))


def test_a_page_asks_for_nothing():
    page = group_html([trajectory()]) + score_mark(0.1)
    assert not [
        word for word in ("http", "src=", "href=", "url(", "<script", "<link") if word in page
    ]
