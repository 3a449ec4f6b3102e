"""Who hears each turn of a dialogue: directions, leave cues, late joiners, contexts, odd input."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.social.memories import structural_score
from humanlm.social.presence import (
    _DialogueTurn,
    _read_turns,
    read_dialogue,
)

CONFAIDE = Path(os.environ.get("HUMANLM_DATA", "/nowhere"), "confaide/tier_3_4.jsonl")


def missed(text, name):
    "Numbers of the turns that somebody does not hear"
    return [i for i, here in enumerate(read_dialogue(text).present) if name not in here]


def chat(*lines):
    return "\n".join(lines)


FILLER = ["Ada: One.", "Ivo: Two.", "Ada: Three.", "Ivo: Four.", "Ada: Five.", "Ivo: Six."]


# ---- reading


def test_turns_directions_and_continuations():
    assert _read_turns("Ada: a: b\n  more\n\n(Ivo joins)\nloose\nDr. Pia Lund: Hi") == [
        _DialogueTurn("Ada", "a: b more"),
        _DialogueTurn("Ivo", "", "joins"),
        _DialogueTurn("Dr. Pia Lund", "Hi"),
    ]


@pytest.mark.parametrize(
    "line, moves",
    [
        ("(Ivo joins)", ["joins"]),
        ("(Ivo leaves the call)", ["leaves"]),
        ("[Ivo enters the room]", ["joins"]),
        ("*Ivo returns*", ["joins"]),
        ("(Ivo, Pia and Ada leave)", ["leaves"] * 3),
        ("(Ivo coughs)", []),
        ("Ivo joins", []),
    ],
)
def test_forms_of_directions(line, moves):
    assert [turn.move for turn in _read_turns(line) if turn.move] == moves


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("AbI :()\n,.&<>and joinsleaves")), max_size=200))
def test_any_text_gives_a_dialogue(text):
    found = read_dialogue(text)
    assert len(found.turns) == len(found.present)
    assert all(
        here.issuperset(turn.people) and set(turn.people) <= set(found.people)
        for turn, here in zip(found.turns, found.present)
    )
    if found.people:
        assert structural_score(found.context()) == 1


# ---- presence


def test_directions_are_followed_to_the_letter():
    text = chat(
        "Ada: Hi.",
        "(Ivo joins)",
        "Ivo: Hi.",
        "(Ivo leaves)",
        "Ada: Now.",
        "(Ivo joins)",
        "Ada: Back?",
        "Pia: Yes, we have to go. Bye!",
        *FILLER[:1] * 8,
    )
    assert missed(text, "Ivo") == [0, 4] and missed(text, "Pia") == missed(text, "Ada") == []


@pytest.mark.parametrize(
    "words",
    [
        "Sorry, I have to take a call.",
        "I need to step out for a minute.",
        "Excuse me, I must go.",
        "See you later!",
        "I'll be right back, let me answer the door.",
        "I’ve got to run.",
        "Goodbye everyone.",
    ],
)
def test_absence_after_a_leave_cue(words):
    assert missed(
        chat("Ada: Hi.", f"Ivo: {words}", *["Ada: So.", "Pia: Well."] * 3, "Ivo: I am back."), "Ivo"
    ) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "words",
    ["I see.", "We have to talk about money.", "I am sorry to hear that.", "The call was long."],
)
def test_silence_without_a_cue_is_no_absence(words):
    assert (
        missed(
            chat("Ada: Hi.", f"Ivo: {words}", *["Ada: So.", "Pia: Well."] * 3, "Ivo: Hm."), "Ivo"
        )
        == []
    )


def test_a_leaver_hears_the_goodbyes():
    text = chat(
        "Ada: Hi.",
        "Ivo: I have to go.",
        "Ada: Bye, Ivo!",
        "Pia: Take care, Ivo.",
        *FILLER[::2] * 3,
        "Ivo: Back.",
    )
    assert missed(text, "Ivo") == list(range(4, 13))


def test_after_the_last_turn():
    assert missed(chat("Ada: Hi.", "Ivo: I have to go.", "Ada: So.", "Pia: Well."), "Ivo") == [2, 3]
    assert missed(chat("Ada: Hi.", "Ivo: Fine.", *["Ada: So.", "Pia: Well."] * 9), "Ivo") == []


def test_late_joiners():
    assert missed(chat("Ada: Hi.", "Ivo: Hi.", "Ada: a", "Pia: Hello!"), "Pia") == [0, 1, 2]
    assert missed(chat("Ada: Hi.", "Ivo: Hi.", "Pia: Hello!"), "Pia") == []


# ---- knowledge and contexts


@pytest.mark.skipif(not CONFAIDE.exists(), reason="set HUMANLM_DATA to a folder with confaide")
def test_confaide_secrets_are_not_heard_by_who_joins_later():
    meetings = [
        row for row in map(json.loads, CONFAIDE.read_text().splitlines()) if row["tier"] == "4"
    ]
    assert len(meetings) == 11
    for row in meetings:
        found = read_dialogue(row["text"])
        joined = {turn.speaker: i for i, turn in enumerate(found.turns) if turn.move == "joins"}
        assert set(joined) == {"Dan", "Kate"}
        for name in found.people:
            assert [i for i, here in enumerate(found.present) if name not in here] == list(
                range(joined.get(name, 0))
            )
        assert structural_score(found.context()) == 1
