"Measures of texts, tastes and the 31 styles: on cases made by hand and on hostile texts."

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import ConfigError
from humanlm.sdpo.styles import ALIASES, CHECKS, STYLES, TASTES, find_trait, measures
from humanlm.worlds.requests import WISHES, draw_traits, granted, write_reply

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
        ("words", "don’t", 1),
        ("casual", "Hey, it's cool.", 1),
        ("casual", "The committee has met.", 0),
        ("casual", "This is okay " + "word " * 29, 0.25),
        ("casual", "Don’t.", 1),
        ("formal", "Furthermore, one may apply.", 1),
        ("formal", "Hey there.", 0),
        ("contractions", "Peter's hat, it's his.", 1),
        ("first_person", "I'd say my hat is mine; item III.", 3),
        ("list_lines", "a\n- b\n  * c\n1. d\n2) e\n-f\n3.5 g", 4),
        ("nested_lines", "- a\n  - b\n\t- c", 1),
        ("list_share", "a\n\n- b", 0.5),
        ("headers", "# A\n## B\n#C\n**Bold line**\nnot **bold** here", 3),
        ("bold", "**a** and **b**", 2),
        ("emojis", "ok 👍🏽 👩‍👩‍👧 🇩🇪 ✓ :)", 4),
        ("exclamations", "No! Never!!", 3),
        ("punctuation", "one two, three.", 2 / 3),
        ("punctuation", "👍", 0),
        ("ends_with_question", "Why?", 1),
        ("ends_with_question", "Why? Because.", 0),
        ("ends_with_question", "Why?!", 1),
        ("ends_with_question", 'He asked "why?".', 0),
        ("ends_with_question", "Is it **so?** 🙂", 1),
        ("ends_with_question", "Really? (yes)", 0),
        ("ends_with_question", "a? b", 0),
        ("opening_praise", "Great question! It is 3.", 1),
        ("opening_praise", "**Absolutely!** It is 3.", 1),
        ("opening_praise", "A great question deserves an answer.", 0),
        ("opening_praise", "It is 3. Great question!", 0),
        ("opening_praise", "Surely not.", 0),
        ("closing_offer", "It is 3. Let me know if you need more.", 1),
        ("closing_offer", "Let me know. One. Two. Three.", 0),
        ("closing_offer", "It is 3. Would you like me to explain that?", 1),
        ("examples", "Fruit, e.g. pears, such as this.", 2),
        ("examples", "exemplary", 0),
        ("hedges", "Perhaps it might, possibly.", 3),
        ("options", "Option 1: go. Alternatively, stay.", 2),
        ("first_words", "Yes, do.\n\nBecause it is so.", 2),
        ("long_words", "short absolutely", 0.5),
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


@given(st.text(max_size=300))
@settings(max_examples=50)
def test_scores_lie_between_0_and_1_and_are_the_same_twice(text):
    found = measures(text)
    assert found == measures(text)
    assert all(0 <= check.score(found) <= 1 for check in CHECKS.values())
    for scores in (
        [taste.score(text) for taste in TASTES.values()],
        [STYLES[key].score(text) for key in STYLES],
    ):
        assert all(
            math.isnan(score) if not text.strip() else not score < 0 and not score > 1
            for score in scores
        )


# ---- tastes


@pytest.mark.parametrize("wish", WISHES)
def test_tastes_see_the_traits_of_the_toy_world(wish):
    rng, taste = random.Random(0), TASTES[wish]

    def share_pleased(name):
        traits = [granted(name, draw_traits(rng)) for _ in range(200)]
        return fmean(taste.score(write_reply("tea", t, rng)) >= 0.5 for t in traits)

    assert share_pleased(wish) > 0.9 and share_pleased(taste.opposite) < 0.05


# ---- styles


def test_the_31_keys_are_those_published_and_the_wrong_spelling_has_an_alias():
    assert list(STYLES) == PUBLISHED and len(STYLES) == 31
    assert {alias: find_trait(alias).key for alias in ALIASES} == {
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


LONG = "You take the pan, next you fill it with water, then you put it on the stove and wait. " * 12
FORMAL = (
    "The egg shall be immersed in boiling water; a period of eight minutes is advisable. "
    "Subsequently, cold water facilitates peeling."
)
CHATTY = (
    "Great question! 😊 I think it's pretty easy:\n\n- grab a pan\n- boil some water\n\nLet "
    "me know if you need more!"
)


@pytest.mark.parametrize(
    "key, better, worse",
    [
        ("concise_casual_beginner", "Hey, just boil it, ok?", LONG + FORMAL),
        ("detailed_professional_expert", FORMAL * 10, CHATTY),
        ("concise_casual_expert", "yeah, eight minutes", LONG),
        ("concise_professional_beginner", FORMAL, "Hey, it's gonna be cool. " * 10),
        ("concise_professional_expert", FORMAL, LONG),
        ("detailed_casual_beginner", "Ok, first grab it, it's easy. " + LONG, FORMAL),
        ("detailed_casual_expert", "Hey, it's pretty cool stuff. " * 40, FORMAL),
        ("detailed_professional_beginner", LONG, CHATTY),
        ("no_punctuation", "boil it", "Boil it. Now!"),
        ("no_emojis", FORMAL, CHATTY),
        ("less_filler_praise_sycophancy", FORMAL, CHATTY),
        ("answer_direclty_reduce_formatting", FORMAL, "# Eggs\n" + "- **boil** it\n" * 80),
        ("no_first_person", FORMAL, CHATTY + " I do."),
        ("clarification_first", "Which egg do you mean?", FORMAL),
        ("single_answer", FORMAL, "Option 1: boil it. Alternatively, fry it."),
        ("writing_tics", FORMAL, CHATTY),
        ("writing_tics_v2", "# Eggs\n- boil", "✅ boil"),
        ("formatting", LONG, "- a\n  - b\n- c"),
        ("no_sycophantic", "No, that is wrong: it takes longer.", CHATTY),
        ("sycophantic_and_praise", FORMAL, CHATTY),
        ("answer_first", "Eight minutes.\n\n" + LONG, LONG),
        ("no_filler_followup", FORMAL, "Eight minutes. Would you like me to explain that?"),
        ("high_initiative", "Eight minutes. What is it for?", "Eight minutes."),
        ("committing", "Eight minutes.", "Perhaps eight, possibly nine, maybe ten."),
        ("no_lists", LONG, CHATTY),
        ("more_lists", "# Eggs\n- boil\n# Pans\n- wash", LONG),
        ("more_formatting", "# A\n- **a**\n# B\n- **b**\n- **c**", "- a\n- b"),
        ("less_formatting", LONG, "# A\n- a\n  - b"),
        (
            "opinionated",
            "You should boil it; my advice is eight minutes.",
            "Option 1: boil it. Alternatively, fry it.",
        ),
        ("exclamation", "Eight minutes. Which egg?", "Eight minutes!"),
    ],
)
def test_styles_prefer_what_they_ask_for(key, better, worse):
    assert STYLES[key].score(better) > STYLES[key].score(worse)


# ---- real texts
