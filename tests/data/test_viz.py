"What is shown stays text, and missing scores are never numbers."

import math

import pytest
from pages import HOSTILE, read

from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score
from humanlm.data.viz import (
    example_html,
    score_mark,
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


# ---- no score is not zero


@pytest.mark.parametrize(
    "score", [None, math.nan, *(Score("0", math.nan, s) for s in ("judge failed", "over budget"))]
)
def test_a_missing_score_says_so(score):
    shown = score_mark(score)
    assert "no score" in shown and "repeating-linear-gradient" in shown
    assert "0.00" not in shown and "nan" not in shown


# ---- choosing


def test_a_page_asks_for_nothing():
    page = score_mark(Score("0", 0.5, "scored", "because", ("point",), (0.5,)))
    assert not [
        word for word in ("http", "src=", "href=", "url(", "<script", "<link") if word in page
    ]
