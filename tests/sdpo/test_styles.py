"Measures of texts, tastes and the 31 styles: on cases made by hand and on hostile texts."

import math

import pytest

from humanlm.core.basics import ConfigError
from humanlm.sdpo.styles import ALIASES, STYLES, find_trait, measures

PUBLISHED = """
    concise_casual_beginner detailed_professional_expert concise_casual_expert
    concise_professional_beginner concise_professional_expert detailed_casual_beginner
    detailed_casual_expert detailed_professional_beginner poetic no_punctuation no_emojis
    less_filler_praise_sycophancy answer_direclty_reduce_formatting no_first_person
    clarification_first single_answer writing_tics writing_tics_v2 formatting no_sycophantic
    sycophantic_and_praise answer_first no_filler_followup high_initiative committing no_lists
    more_lists more_formatting less_formatting opinionated exclamation
""".split()
HOSTILE = [
    "",
    " \n\t",
    "\ud800",
    "?",
    "x" * 100_000,
    "* " * 50_000,
    "?!" * 50_000,
    "🙂\u200d" * 30_000,
    " " * 100_000 + "- x",
]


# ---- measures


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("words", "It's a state-of-the-art tool, e.g. for 3 people.", 9),
        ("casual", "Hey, it's cool.", 1),
        ("casual", "The committee has met.", 0),
        ("casual", "This is okay " + "word " * 29, 0.25),
        ("formal", "Furthermore, one may apply.", 1),
        ("contractions", "Peter's hat, it's his.", 1),
        ("list_lines", "a\n- b\n  * c\n1. d\n2) e\n-f\n3.5 g", 4),
        ("list_share", "a\n\n- b", 0.5),
        ("headers", "# A\n## B\n#C\n**Bold line**\nnot **bold** here", 3),
        ("bold", "**a** and **b**", 2),
        ("emojis", "ok 👍🏽 👩‍👩‍👧 🇩🇪 ✓ :)", 4),
        ("exclamations", "No! Never!!", 3),
        ("punctuation", "one two, three.", 2 / 3),
        ("ends_with_question", "Why?!", 1),
        ("ends_with_question", 'He asked "why?".', 0),
        ("ends_with_question", "Is it **so?** 🙂", 1),
        ("opening_praise", "Great question! It is 3.", 1),
        ("opening_praise", "**Absolutely!** It is 3.", 1),
        ("opening_praise", "A great question deserves an answer.", 0),
        ("closing_offer", "It is 3. Let me know if you need more.", 1),
        ("closing_offer", "It is 3. Would you like me to explain that?", 1),
        ("examples", "Fruit, e.g. pears, such as this.", 2),
        ("options", "Option 1: go. Alternatively, stay.", 2),
        ("first_words", "Yes, do.\n\nBecause it is so.", 2),
    ],
)
def test_measures_of_texts_made_by_hand(name, text, value):
    assert measures(text)[name] == pytest.approx(value)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:6]))
def test_hostile_texts_have_finite_measures_in_linear_time(text):
    assert all(
        type(value) is float and math.isfinite(value) and value >= 0
        for value in measures(text).values()
    )
    if not text.strip():
        assert set(measures(text).values()) == {0.0}


# ---- styles


def test_the_31_keys_are_those_published_and_the_wrong_spelling_has_an_alias():
    assert list(STYLES) == PUBLISHED and len(STYLES) == 31
    assert {alias: find_trait(alias).name for alias in ALIASES} == {
        "answer_directly_reduce_formatting": "answer_direclty_reduce_formatting"
    }
    corners = {style.axes for style in STYLES.values() if style.axes}
    assert corners == {
        (a, b, c)
        for a in ("concise", "detailed")
        for b in ("casual", "professional")
        for c in ("beginner", "expert")
    }
    with pytest.raises(ConfigError, match="Did you mean 'poetic'"):
        find_trait("poetik")


# ---- real texts
