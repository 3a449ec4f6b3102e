"What an answer is worth is read the same however it is written, and nothing hostile is evaluated or takes long."
import json
import math
import os
import time
from fractions import Fraction
from pathlib import Path

import pytest

from humanlm.classmate.verifiers import VERIFIERS, boxed, count_bold, find_verifier, read_letter, read_number, read_rating, read_yes, verify_letter, verify_number, verify_yes
from humanlm.core.basics import ConfigError


@pytest.mark.parametrize("text, number", [
    ("-5", -5), ("−5", -5), ("The answer is -5.", -5), ("-0", 0), ("0.50", Fraction(1, 2)), ("1/2", Fraction(1, 2)), ("$1,234.50", Fraction("1234.5")), ("12 %", 12), ("1{,}000", 1000), ("7 apples", 7),
    (r"\boxed{7}", 7), (r"\boxed{\dfrac{3}{4}}", Fraction(3, 4)), (r"\boxed{1} and \boxed{2}", 2), (r"\boxed{-\$12}", -12), (r"9 but \boxed{x}", None), ("A: 3 + 4 = 7", 7), ("A: 12 apples (3 each)", 12),
    ("The answer is 5.\nCheck: 2 + 3", 5), ("answer is unknown, maybe 4", 4), ("1e3", 1000), ("3/0", None), ("9" * 61, None), ("9" * 60, int("9" * 60)), ("", None), ("none", None), ("1e99", 10 ** 99), ("1,23", 23),
    ("#### 10\n#### 20", 20), ("٣", 3)])
def test_numbers_are_read_however_they_are_written(text, number):
    assert read_number(text) == number


def test_the_grader_says_of_published_solutions_what_their_marks_say():
    if not os.environ.get("HUMANLM_DATA"): pytest.skip("HUMANLM_DATA is not set: no gsm8k solutions")
    rows = map(json.loads, (Path(os.environ["HUMANLM_DATA"]) / "gsm8k" / "model_solutions_half.jsonl").read_text("utf-8").splitlines())
    pairs = [(verify_number(found["solution"], row["ground_truth"]).value == 1, found["is_correct"]) for row in rows for found in row.values() if isinstance(found, dict)]
    assert len(pairs) == 2612 and sum(a == b for a, b in pairs) == 2612 and 0.2 < sum(b for _, b in pairs) / 2612 < 0.8


def test_every_gold_answer_of_the_test_set_is_read():
    if not os.environ.get("HUMANLM_DATA"): pytest.skip("HUMANLM_DATA is not set: no gsm8k")
    rows = [json.loads(line) for line in (Path(os.environ["HUMANLM_DATA"]) / "gsm8k" / "test_half.jsonl").read_text("utf-8").splitlines()]
    assert all(read_number(row["answer"]) == Fraction(row["answer"].split("####")[1].strip().replace(",", "")) for row in rows)


@pytest.mark.parametrize("text, letter, form", [
    ("Therefore, the answer is (B).", "B", True), ("Therefore the answer is C", "C", True), ("The answer is (A). Therefore, the answer is (D).", "D", True), ("Answer: b", "B", False), (r"\boxed{\text{C}}", "C", False),
    ("(C) is correct, A is not", "C", False), ("**D**", "D", False), ("A good answer is apples.", "", False), ("the answer is A's", "", False), ("I like A and B.", "", False), ("", "", False)])
def test_letters_are_chosen_and_not_only_named(text, letter, form):
    assert read_letter(text) == (letter, form)


def test_a_wrong_hint_is_paid_and_gold_that_is_none_is_no_zero():
    assert verify_letter("The answer is C", "C").value == 1 and verify_letter("The answer is A", "C").value == 0 == verify_letter("", "C").value
    for bad in (verify_letter("B", "?"), verify_number("5", "five"), verify_yes("yes", "maybe")): assert math.isnan(bad.value) and bad.why


@pytest.mark.parametrize("text, yes", [("Yes.", True), ("**No**", False), ("I would say yes", True), ("yes and no", True), ("It is yes or no", None), ("nothing yesterday", None), ("", None)])
def test_yes_and_no(text, yes):
    assert read_yes(text) is yes


def test_persona_evaluations_have_gold_that_is_read():
    if not os.environ.get("HUMANLM_DATA"): pytest.skip("HUMANLM_DATA is not set: no anthropic_persona_evals")
    files = sorted((Path(os.environ["HUMANLM_DATA"]) / "anthropic_persona_evals").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    assert len(rows) > 100 and all(verify_yes(row["answer_matching_behavior"], row["answer_matching_behavior"]).value == 1 for row in rows)
    assert all(verify_yes(row["answer_not_matching_behavior"], row["answer_matching_behavior"]).value == 0 for row in rows)


@pytest.mark.parametrize("text, value", [("RATING: 7", 7), ("rating: 8/10", 8), ("3 reasons.\n**RATING: 9**", 9), ("RATING: 2\nRATING: 4", 4), ("**8**", 8), ("7/10", 7), ("RATING: 0", None), ("RATING: 11", None),
                                         ("score 11", None), ("I counted 3.", None), ("", None), ("RATING: -3", None), ("RATING: 1e9", None)])
def test_marks_of_judges(text, value):
    found = read_rating(text)
    assert found.value == value if value is not None else math.isnan(found.value) and found.why


@pytest.mark.parametrize("text, count", [("**a** and **b c**", 2), ("**a\nb**", 0), ("****", 0), ("* a ** b", 0), ("**a****b**", 2), ("", 0)])
def test_bold_spans_stay_on_a_line(text, count):
    assert count_bold(text).value == count


HOSTILE = ["\n", "1,", "1/", "-", "$", r"\boxed{", r"\frac{1}{", "**", "** a", "A ", "the answer is ", "RATING:", "RATING: 1 ", "yes no ", "####", "9", "1.1.", "(", "{", "=", "__import__('os').system('x')", "٣", " \t"]


@pytest.mark.parametrize("name", [*VERIFIERS])
def test_hostile_answers_take_linear_time_and_have_a_verdict(name):
    for unit in HOSTILE:
        text, begin = unit * (100_000 // len(unit)), time.process_time()
        found = find_verifier(name)(text, {"mmlu": "A", "mmlu_sycophancy": "A", "yes_no": "yes"}.get(name, "5"))
        assert isinstance(found.value, float) and len(found.read) < 100
        read_rating(text), boxed(text)
        assert time.process_time() - begin < 3, unit


def test_a_verifier_that_is_none_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="gsm8k"): find_verifier("gsm8")
    with pytest.raises(ConfigError): find_verifier("not_gsm8k_at_all")
