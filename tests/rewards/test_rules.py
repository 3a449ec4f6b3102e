"""Reading by rule: any text, in linear time, and labels that agree with the comparison."""

import time

import pytest

from humanlm.rewards.matching import rule_match, rule_state
from humanlm.rewards.rules import TERMS, read_rules, tokens


@pytest.mark.parametrize(
    "text",
    [
        "." * 300_000,
        "a." * 150_000,
        "a'" * 150_000,
        "<" * 300_000,
        "not " * 75_000,
        "x" * 300_000,
        ":-" * 150_000,
        "but " * 75_000,
        "!?" * 150_000,
        "the " * 75_000,
        "i " * 150_000,
        "http:/" * 50_000,
    ],
)
def test_reading_is_linear_on_hostile_text(text):
    start = time.process_time()
    tokens(text), read_rules(text), rule_match("response", text[:999], text)
    rule_state("communication", text), rule_state("stance", text, text)
    assert time.process_time() - start < 6


SAID = [
    "Nah, replacing the bus line with scooters is just silly.",
    "Yes please, more night trains!",
    "Ugh, the update broke the sound again!!",
    "Thanks a lot, that helped.",
    "Does anyone know which cable goes into the left port?",
    "You should try the other driver, it is simple and reliable.",
    "lol, not that again :)",
    "Maybe it is the battery, but I am not sure.",
    "Last year we had the same trouble at home and nothing helped.",
    "ok",
    "no",
    "Wear the helmet, it is dangerous.",
]


@pytest.mark.parametrize("level", TERMS)
def test_weak_labels_agree_with_the_comparison(level):
    said = [(text, rule_state(level, text)) for text in SAID]
    said = [row for row in said if row[1] is not None]
    assert len(said) >= 4 or level in ("belief", "value")
    for text, own in said:
        fit = rule_match(level, text, own).value
        assert fit >= 0.8, (text, own, fit)
        assert len(own.split()) <= 15
