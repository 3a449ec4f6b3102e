"""Measures of texts, tastes and the 31 styles: on cases made by hand, on hostile texts, in the toy world, and on real texts."""

import json
import math
import os
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import ConfigError
from humanlm.sdpo.styles import ALIASES, CHECKS, STYLES, TASTES, find_style, measures
from humanlm.worlds.requests import WISHES, draw_traits, granted, write_reply

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_data = pytest.mark.skipif(
    not (DATA / "mt_bench").is_dir(),
    reason="set HUMANLM_DATA to a folder with mt_bench, hh_rlhf_mild, wildchat_prompts, "
    "irc_threads and mmlu_stem",
)
PUBLISHED = """concise_casual_beginner detailed_professional_expert concise_casual_expert concise_professional_beginner concise_professional_expert
    detailed_casual_beginner detailed_casual_expert detailed_professional_beginner poetic no_punctuation no_emojis less_filler_praise_sycophancy
    answer_direclty_reduce_formatting no_first_person clarification_first single_answer writing_tics writing_tics_v2 formatting no_sycophantic
    sycophantic_and_praise answer_first no_filler_followup high_initiative committing no_lists more_lists more_formatting less_formatting opinionated
    exclamation""".split()
HOSTILE = [
    "",
    " \n\t",
    "\ud800",
    "?",
    "x" * 100_000,
    "* " * 50_000,
    "\n- " * 50_000,
    "**" * 50_000,
    ". " * 50_000,
    "'a" * 50_000,
    "?!" * 50_000,
    "🙂\u200d" * 30_000,
    "i'd " * 30_000,
    "(((" * 50_000,
    "_" * 100_000,
    "<|im_end|>" * 1000,
    "# " * 50_000,
    " " * 100_000 + "- x",
]


# ---- measures


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("words", "It's a state-of-the-art tool, e.g. for 3 people.", 9),
        ("words", "don’t", 1),
        ("sentences", "One. Two!\nThree", 3),
        ("sentences", "...", 0),
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
@settings(max_examples=150)
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

WANTED = {
    "short": "short|few|brief|words|one sentence",
    "long": "long|detail|length|more|thorough|space|full picture|short",
    "casual": "casual|relaxed|friend|everyday|loosen|stiff|easygoing",
    "formal": "formal|register|slang|professional",
    "question": "question|ask",
    "no_question": "question|ask",
    "list": "list|bullet|point",
    "prose": "running text|bullet|list|paragraph|prose|sentences",
    "plain_words": "words|language|vocabulary",
    "rich_words": "words|vocabulary|language",
    "example": "example|abstract",
    "no_example": "example",
}


@pytest.mark.parametrize("taste", TASTES.values(), ids=TASTES)
def test_complaints_and_praises_name_what_is_wanted_and_are_told_apart(taste):
    assert taste.opposite in TASTES and TASTES[taste.opposite].opposite == taste.name
    for phrases in (taste.complaints, taste.praises):
        assert 4 <= len(phrases) == len(set(phrases)) <= 6
        assert [
            phrase for phrase in phrases if not re.search(WANTED[taste.name], phrase.lower())
        ] == []
    others = {
        phrase
        for other in TASTES.values()
        if other is not taste
        for phrase in other.complaints + other.praises
    }
    assert not others & {*taste.complaints, *taste.praises} and not {*taste.complaints} & {
        *taste.praises
    }


@pytest.mark.parametrize("name", ["short", "question", "list", "plain_words", "example"])
def test_opposites_add_up_to_one(name):
    for text in (
        "Keep the sugar, e.g. the brown one, in the cellar?",
        "- a\n- b\nhere",
        "word " * 30,
        "An extraordinarily complicated vocabulary",
    ):
        assert TASTES[name].score(text) + TASTES[TASTES[name].opposite].score(
            text
        ) == pytest.approx(1)


@pytest.mark.parametrize("wish", WISHES)
def test_tastes_see_the_traits_of_the_toy_world(wish):
    rng, taste = random.Random(0), TASTES[wish]

    def share_pleased(name):
        traits = [granted(name, draw_traits(rng)) for _ in range(200)]
        return fmean(taste.score(write_reply("tea", t, rng)) >= 0.5 for t in traits)

    assert share_pleased(wish) > 0.9 and share_pleased(taste.opposite) < 0.05


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u2003"])
def test_an_empty_text_has_no_score(blank):
    assert all(
        math.isnan(score)
        for score in [
            *(taste.score(blank) for taste in TASTES.values()),
            *(STYLES[key].score(blank) for key in STYLES),
        ]
    )


def test_a_neutral_reply_pleases_neither_register():
    assert [TASTES[name].score("The kettle is on the shelf.") for name in ("casual", "formal")] == [
        0,
        0,
    ]


# ---- styles


def test_the_31_keys_are_those_published_and_the_wrong_spelling_has_an_alias():
    assert list(STYLES) == PUBLISHED and len(STYLES) == 31
    assert {alias: find_style(alias).key for alias in ALIASES} == {
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
        find_style("poetik")


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_style_is_data_that_can_be_read_and_checked(style):
    assert (
        len(style.wants.split()) >= 3
        and len(style.dislikes.split()) >= 2
        and not set('{}\n"') & set(style.wants + style.dislikes)
    )
    assert set(style.checks) <= CHECKS.keys() and len(style.checks) == len(set(style.checks))
    score = style.score("Eight minutes.")
    assert 0 <= score <= 1 if style.checks else math.isnan(score)
    assert math.isnan(style.score(" "))


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


def test_all_but_poetry_have_a_check():
    assert [key for key, style in STYLES.items() if not style.checks] == ["poetic"]


def test_the_module_reads_alone_and_loads_nothing_heavy():
    code = (
        "import sys, humanlm.sdpo.styles as s; assert len(s.STYLES) == 31; "
        "print(sorted({'torch','transformers','trl','pandas','numpy'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


# ---- real texts


def rows(name):
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


@cache
def texts():
    replies = [
        said
        for row in rows("hh_rlhf_mild/examples.jsonl")
        for said in re.findall(r"\n\nAssistant:(.*?)(?=\n\nHuman:|\Z)", row["chosen"], re.S)
    ]
    return {
        "mt_bench": [turn for row in rows("mt_bench/questions.jsonl") for turn in row["turns"]],
        "hh_rlhf": [r for r in replies if r.strip()],
        "wildchat": [row["prompt"] for row in rows("wildchat_prompts/prompts.jsonl")],
        "irc": [row["text"] for row in rows("irc_threads/irc_dev.jsonl")[:1500]],
        "mmlu": [row["question"] for row in rows("mmlu_stem/questions.jsonl")[:500]],
    }


@needs_data
def test_measures_tell_real_registers_apart():
    found = {name: [measures(text) for text in said] for name, said in texts().items()}
    mean = {
        name: {key: fmean(m[key] for m in all_of) for key in all_of[0]}
        for name, all_of in found.items()
    }
    assert all(math.isfinite(value) for means in mean.values() for value in means.values())
    assert (
        mean["irc"]["casual"] > 2 * mean["mt_bench"]["casual"]
        and mean["hh_rlhf"]["casual"] > 0.15
        and mean["mmlu"]["casual"] < 0.02
    )
    assert (
        mean["hh_rlhf"]["long_words"] < mean["mt_bench"]["long_words"]
        and mean["mmlu"]["ends_with_question"] > 0.4
    )
    for name in ("mt_bench", "wildchat"):
        assert all(
            0 <= taste.score(text) <= 1
            for taste in TASTES.values()
            for text in texts()[name]
            if text.strip()
        )
