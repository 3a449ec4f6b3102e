"What is shown stays text, missing scores are never numbers, and pages stand alone."

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import HOSTILE, read

from humanlm.data.records import Example, Message, Persona
from humanlm.data.trajectory import Score, Trajectory
from humanlm.data.viz import (
    _push,
    cut,
    example_html,
    group_html,
    score_grid,
    score_mark,
    score_style,
    spread,
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
    read(score_grid({text: {text: score, "goal": 0.3}}, text))


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


def test_a_text_can_be_read_again():
    assert "<stance>for</stance>" in read(group_html([trajectory("<stance>for</stance>")])).text


# ---- no score is not zero


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_score_is_never_paler(a, b):
    def depth(value):
        return float(score_style(value).split(",")[3].split(")")[0])

    assert depth(min(a, b)) <= depth(max(a, b))


@pytest.mark.parametrize(
    "score", [None, math.nan, *(Score("0", math.nan, s) for s in ("judge failed", "over budget"))]
)
def test_a_missing_score_says_so(score):
    shown = score_mark(score)
    assert "no score" in shown and "repeating-linear-gradient" in shown
    assert "0.00" not in shown and "nan" not in shown


def test_a_fault_of_the_candidate_is_a_zero_with_its_status():
    assert "0.00 · copied context" in score_mark(
        Score("0", 0.0, "copied context", "60% stand in the context")
    )


def test_a_cell_that_was_not_asked_for_is_empty():
    page = score_grid({"a": {"stance": 0.5}, "b": {"goal": None}})
    assert page.count("no score") == 1 and page.count("<td") == 4


def test_an_advantage_that_is_missing_is_not_a_push():
    page = group_html(
        [trajectory("a", advantage=math.nan), trajectory("b", value=math.nan, advantage=math.nan)]
    )
    assert "none" in page and "no push" in page and "nan" not in page


# ---- choosing


@given(st.lists(st.integers(), unique=True), st.integers(2, 9))
def test_spread_keeps_both_ends_and_the_order(items, n):
    found = spread(items, n)
    assert len(found) == min(n, len(items)) and found == sorted(found, key=items.index)
    if items:
        assert found[0] == items[0] and found[-1] == items[-1]


@given(st.text(), st.integers(1, 50))
def test_a_cut_text_says_what_is_missing(text, limit):
    more = len(text) - limit
    assert f"({more} characters more)" in cut(text, limit) if more > 0 else cut(text, limit) == text


def test_samples_stand_best_first_and_missing_pushes_between():
    pushes = {"worst": -1.0, "best": 1.0, "unscored": math.nan}
    page = group_html([trajectory(text, advantage=push) for text, push in pushes.items()])
    assert page.index("best") < page.index("unscored") < page.index("worst")


def test_token_advantages_are_averaged():
    t = replace(trajectory(), completion_ids=[1, 2], mask=[True, True], advantage=[1.0, 0.0])
    assert _push(t) == 0.5 and "+0.50" in group_html([t])
    assert math.isnan(_push(replace(t, completion_ids=[], mask=[], advantage=[])))


def test_a_page_asks_for_nothing():
    page = group_html([trajectory()]) + score_grid({"a": {"b": 0.1}})
    assert not [
        word for word in ("http", "src=", "href=", "url(", "<script", "<link") if word in page
    ]
