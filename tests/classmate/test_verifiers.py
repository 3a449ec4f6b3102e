"What an answer is worth, however it is written; nothing hostile is evaluated or takes long."

import json
import math
import os
import time
from fractions import Fraction
from pathlib import Path

import pytest

from humanlm.classmate.verifiers import (
    VERIFIERS,
    _read_letter,
    _read_rating,
    _verify_letter,
    _verify_math,
    _verify_number,
    boxed,
)


@pytest.mark.parametrize(
    "text, number",
    [
        ("−5", -5),
        ("The answer is -5.", -5),
        ("0.50", Fraction(1, 2)),
        ("1/2", Fraction(1, 2)),
        ("$1,234.50", Fraction("1234.5")),
        ("1{,}000", 1000),
        (r"\boxed{\dfrac{3}{4}}", Fraction(3, 4)),
        (r"\boxed{-\$12}", -12),
        (r"9 but \boxed{x}", None),
        ("The answer is 5.\nCheck: 2 + 3", 5),
        ("", None),
        ("none", None),
        ("1,23", Fraction("1.23")),
        ("The answer is 5 000", 5000),
        ("1\u202f234 people", 1234),
        ("The answer is 10% of 50, which is 5", 5),
        ("The answer is not 5, it is 6.", 6),
        ("The answer is not 20 but 18.", 18),
        ("The answer is 42, which is divisible by 7.", 42),
        ("The answer is 72, which gives 24 pages per day for 3 days.", 72),
        ("The answer is 3 + 4, which is 7.", 7),
    ],
)
def test_numbers_are_read_however_they_are_written(text, number):
    assert _verify_number(text, "7" if number is None else str(number)).value == (
        number is not None
    )


def test_the_grader_says_of_published_solutions_what_their_marks_say():
    if not os.environ.get("HUMANLM_DATA"):
        pytest.skip("HUMANLM_DATA is not set: no gsm8k solutions")
    rows = map(
        json.loads,
        (Path(os.environ["HUMANLM_DATA"]) / "gsm8k" / "model_solutions_half.jsonl")
        .read_text("utf-8")
        .splitlines(),
    )
    pairs = [
        (_verify_number(found["solution"], row["ground_truth"]).value == 1, found["is_correct"])
        for row in rows
        for found in row.values()
        if isinstance(found, dict)
    ]
    assert (
        len(pairs) == 2612
        and sum(a == b for a, b in pairs) == 2612
        and 0.2 < sum(b for _, b in pairs) / 2612 < 0.8
    )


@pytest.mark.parametrize(
    "text, letter",
    [
        ("Therefore, the answer is (B).", "B"),
        ("Therefore the answer is C", "C"),
        ("The answer is (A). Therefore, the answer is (D).", "D"),
        ("Answer: b", "B"),
        (r"\boxed{\text{C}}", "C"),
        ("(C) is correct, A is not", "C"),
        ("**D**", "D"),
        ("A good answer is apples.", ""),
        ("the answer is A's", ""),
        ("I like A and B.", ""),
        ("", ""),
    ],
)
def test_letters_are_chosen_and_not_only_named(text, letter):
    assert _read_letter(text) == letter


def test_a_wrong_hint_is_paid_and_gold_that_is_none_is_no_zero():
    assert (
        _verify_letter("The answer is C", "C").value == 1
        and _verify_letter("The answer is A", "C").value == 0 == _verify_letter("", "C").value
    )
    for bad in (_verify_letter("B", "?"), _verify_number("5", "five")):
        assert math.isnan(bad.value) and bad.why


@pytest.mark.parametrize(
    "answer, gold, value",
    [
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{\dfrac12}", r"\frac{1}{2}", 1),
        ("The answer is $(x+1)^2$", "x^2+2x+1", 1),
        (r"\boxed{-0}", "0", 1),
        (r"\boxed{10\text{ cm}}", "10", 1),
        (r"\boxed{\$32,348}", "32348", 1),
        (r"\boxed{\left(3,\pi/2\right)}", r"(3, \frac{\pi}{2})", 1),
        (r"\boxed{(2,1)}", "(1,2)", 0),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", 1),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", 1),
        (r"\boxed{x=5}", "5", 1),
        (r"\boxed{6}", "5", 0),
        ("I do not know", "5", 0),
        ("", "5", 0),
        (r"\boxed{5", "5", 0),
        (r"\boxed{5}", r"Thus $2+3=\boxed{5}$.", 1),
        (r"\boxed{5}", "", None),
        (r"\boxed{10^{30}}", "1" + "0" * 30, 1),
    ],
)
def test_formulas_are_compared_by_what_they_mean(answer, gold, value):
    pytest.importorskip("math_verify")
    found = _verify_math(answer, gold)
    assert found.value == value if value is not None else math.isnan(found.value) and found.why


TOWERS = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{" + "2^{" * 1000 + "9" + "}" * 1000 + "}",
    r"\boxed{" + "(" * 300 + "1" + ")" * 300 + "}",
    "\ud800 $x$",
    r"\boxed{__import__('os').abort()}",
]


def test_no_formula_hangs_or_ends_this_process_and_the_next_is_read():
    pytest.importorskip("math_verify")
    for tower in TOWERS:
        begin = time.monotonic()
        found = _verify_math(tower, "x^2 + 1")
        assert (
            found.value == 0 or (math.isnan(found.value) and found.why)
        ) and time.monotonic() - begin < 60, tower
        assert _verify_math(r"\boxed{2 \cdot 3}", "6").value == 1


HOSTILE = [
    "\n",
    "1,",
    "1/",
    "-",
    "$",
    r"\boxed{",
    r"\frac{1}{",
    "**",
    "** a",
    "A ",
    "the answer is ",
    "RATING:",
    "RATING: 1 ",
    "yes no ",
    "####",
    "9",
    "1.1.",
    "(",
    "{",
    "=",
    "__import__('os').system('x')",
    "٣",
    " \t",
]


@pytest.mark.parametrize("name", [*{rule: name for name, rule in VERIFIERS.items()}.values()])
def test_hostile_answers_take_linear_time_and_have_a_verdict(name):
    if name in ("gsm8k", "openai/gsm8k", "math", "EleutherAI/hendrycks_math"):
        pytest.importorskip("math_verify")
    for unit in HOSTILE:
        text, begin = unit * (100_000 // len(unit)), time.process_time()
        found = VERIFIERS[name](text, {"mmlu_sycophancy": "A"}.get(name, "5"))
        assert isinstance(found.value, float) and len(found.read) < 100
        _read_rating(text), boxed(text)
        assert time.process_time() - begin < 3, unit


@pytest.mark.parametrize(
    "text, letter",
    [
        ("The answer is a matter of debate, but I choose (C)", "C"),
        ("the answer is I think B", ""),
        ("The correct option is B.", "B"),
        ("the answer is b.", "B"),
        ("The answer is I.", "I"),
        ("The answer is A because it is larger", "A"),
        ("my choice: (d)", "D"),
    ],
)
def test_articles_and_pronouns_are_no_options(text, letter):
    assert _read_letter(text) == letter


@pytest.mark.parametrize(
    "text, value",
    [
        ("RATING: 7 out of 10", 7),
        ("Rating: 8 – flattering", 8),
        ("EXPLANATION: x RATING: 6", 6),
        ("RATING: 7-8", math.nan),
        ("RATING: 1 to 10", math.nan),
        ("It says RATING: 10 of itself, and I do not agree", math.nan),
        ("RATING: 3, it is plain", 3),
        ("**Rating:** 4.5/10", 4.5),
    ],
)
def test_ratings_are_read_however_they_are_put_and_ranges_are_none(text, value):
    assert _read_rating(text).value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    "name, answer, gold",
    [
        ("math", r"\boxed{10^{-20}}", "10^{-21}"),
        ("math", r"\boxed{(10^{-20}, 1)}", "(10^{-21}, 1)"),
        ("math", r"\boxed{0.0000001}", "0.0000002"),
        ("math", r"\boxed{2516_9}", "2516_8"),
        ("math", r"\boxed{2516_{10}}", "2516_8"),
        ("math", r"\boxed{3t}", "3"),
        ("math", r"\boxed{0.5\%}", r"50\%"),
        ("gsm8k", r"\boxed{4\sqrt{2}}", "4"),
        ("gsm8k", "The answer is 3x.", "3"),
        ("gsm8k", r"\boxed{5 : 3}", "5"),
        ("gsm8k", r"\boxed{(5, 3)}", "5"),
        ("gsm8k", r"\boxed{18_9}", "18"),
        ("gsm8k", "The answer is 3:1.", "3"),
        ("gsm8k", "The answer is 3 : 1", "3"),
        ("math", r"\boxed{CBA}", "ABC"),
        ("math", r"\boxed{east}", "seat"),
        ("gsm8k", r"\boxed{18k}", "18"),
    ],
)
def test_what_only_looks_like_the_gold_answer_is_wrong(name, answer, gold):
    pytest.importorskip("math_verify")
    assert VERIFIERS[name](answer, gold).value == 0
    assert VERIFIERS[name](gold, gold).value == 1


@pytest.mark.parametrize(
    "text, letter",
    [
        ("The correct answer is: (B) Paris", "B"),
        (r"\boxed{\textbf{(B)}\ 12}", "B"),
        ("therefore, the answer is (A). But that is wrong. The answer is B.", "B"),
        (r"The answer is A. Hmm, no. \boxed{B}", "B"),
        ("The answer is B. Option A is too small.", "B"),
        ("B) Paris", "B"),
        ("The answer is A. Wait, it should be D.", "D"),
        ("<answer>B</answer>", "B"),
        (r"\boxed{Area}", ""),
        ("The answer is A or B", ""),
        ("Therefore, the answer is (A). Let me double-check. It's C.", "C"),
        ("Therefore, the answer is (A). Hmm, B is better.", "B"),
        ("Therefore, the answer is (A). Wait, no, C.", "C"),
        ("I initially thought the answer is A. However the correct one is D.", "D"),
        ("The answer is C. If the question had asked for X, the answer would be D.", "C"),
        ("The answer is C. If it were 2.5 K colder, it would be D.", "C"),
        ("Answer: A, C", ""),
        ("Answer: B, C is too small", "B"),
        ("I think it's B.", "B"),
        ("So it must be D.", "D"),
        ("The answer is ( B ).", "B"),
        ("The answer is D. Some think it's A.", "D"),
        ("The answer is C. It is B vitamins that help.", "C"),
        ("It's a matter of taste. It is I who ask. It isn't B.", ""),
        ("I would not choose A.", ""),
    ],
)
def test_the_letter_that_is_said_last_wins_whatever_its_form(text, letter):
    assert VERIFIERS["mmlu"](text, "B").read == letter


def test_the_published_reading_of_letters_stays_under_its_name():
    text = "Therefore, the answer is (A). But that is wrong. The answer is B."
    assert VERIFIERS["mmlu_sycophancy"](text, "A").value == 1


@pytest.mark.parametrize("tag", ["think", "thinking", "THINK", "reasoning"])
@pytest.mark.parametrize(
    "name, answer, gold",
    [
        ("mmlu", "Answer: A", "A"),
        ("gsm8k", "Answer: 5", "5"),
        ("math", r"\boxed{5}", "5"),
    ],
)
def test_an_open_thought_is_no_answer(tag, name, answer, gold):
    assert VERIFIERS[name](f"<{tag}>{answer}", gold)[:2] == (0, "")
    assert VERIFIERS[name](f"<{tag}>x</{tag}>{answer}", gold).value == 1
