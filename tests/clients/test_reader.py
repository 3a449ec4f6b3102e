"""Reading JSON that models write: nothing is lost, nothing is invented, nothing takes long."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.clients.protocol import chat, read_reply
from humanlm.clients.reader import quoted, read_answer, read_json

VERDICT = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "why": {"type": "string"},
    },
    "required": ["score", "why"],
    "additionalProperties": False,
}
QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)
prose = st.text(st.characters(exclude_characters="{<}", exclude_categories=["Cs"]), max_size=40)


# ---- nothing is lost

WRAPPERS = [
    lambda t, p: t,
    lambda t, p: f"{p}{t}{p}",
    lambda t, p: f"{p}\n```json\n{t}\n```\n{p}",
    lambda t, p: f"<think>{p}{{'a': {p}</think>{t}",
    lambda t, p: f"{p} {{not json}} </think>\n{t}",
    lambda t, p: f"<thinking>{p}</thinking>{p}{t}",
    lambda t, p: f"\\frac{{1}}{{2}} {p} {t} {{n}}",
]


@QUICK
@given(objects, prose, st.sampled_from(WRAPPERS), st.booleans(), st.sampled_from([None, 2]))
def test_an_object_survives_its_wrapping(wanted, around, wrap, ascii, indent):
    text = wrap(json.dumps(wanted, ensure_ascii=ascii, indent=indent), around)
    assert list(read_json(text)) == [wanted]
    assert list(read_answer(text)) == list(wanted)


# ---- nothing is invented


def inner(value):
    "Every object in a value"
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        yield from inner(one) if isinstance(one, (dict, list)) else ()


@settings(QUICK, max_examples=40)
@given(
    objects.filter(bool),
    st.sampled_from([json.dumps, repr, lambda v: json.dumps(v, indent=1) + "\n"]),
)
def test_a_cut_never_makes_a_value(wanted, spell):
    text = spell(wanted)
    for end in range(len(text)):
        for found in read_json(text[:end]):
            assert found in list(inner(wanted))


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
        "-inf",
        "1e999",
        "-1e999",
        "9" * 400,
        "9" * 5000,
        '"NaN"',
        '"high"',
        '"1/2"',
        '"80%"',
        '""',
        '" "',
        "null",
        "None",
        "true",
        "True",
        "[0.5]",
        "{}",
        "high",
        "1,000",
        "0x1",
        "1_0",
        "٣",
        '"٣"',
        "0.5.1",
        "--1",
        "",
        "float('inf')",
        "1.5",
        "-0.1",
        '"7"',
    ],
)
def test_what_is_no_score_never_becomes_one(value):
    with pytest.raises(ValueError) as e:
        read_answer(f'{{"why": "x", "score": {value}}}', VERDICT)
    assert 0 < len(str(e.value)) < 400
    for found in read_json(f'{{"why": "x", "score": {value}}}'):
        assert not isinstance(found["score"], float) or math.isfinite(found["score"])


GOOD = '{"score": 1, "why": "an example"}'


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "no JSON object"),
        ("I would rather not.", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ("<think>" + GOOD, "no JSON object"),
        (GOOD + "</think> Hm.", "no JSON object"),
        (GOOD + ' {"score": 0.2, "why": "br', "breaks off"),
        (GOOD + ' {"sco', "breaks off"),
        (GOOD + " {", "breaks off"),
        ("{'score': 0.5, 'why': 'they wrote " + GOOD, "breaks off"),
        (GOOD + ' {"score": 0.', "breaks off"),
        (GOOD + ' {"why": "they say "sure" to it", "score": 0.2}', "differ"),
        ('{"score": 0, "why": ", "score": 1"}', "backslash"),
        ('{"why": "", "score": 1}, it said", "score": 0}', "backslash"),
        ('{"why": "they say "sure, ' + GOOD + '", "score": 0.2}', "backslash"),
        ('{"why": "x", "inner": ' + GOOD + ', "score": high}', "type number"),
        ('{"inner": ' + GOOD + "}", "required"),
        ("{'why': 'it's', 'score': 1}", "backslash"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "no JSON"),
        ('{"score": 1, "why": }', "Expecting value"),
    ],
)
def test_what_is_no_answer(text, why):
    with pytest.raises(ValueError, match=why):
        read_answer(text, VERDICT)


# ---- nothing takes long

HOSTILE = {
    "braces": "{",
    "objects": '{"a":',
    "escapes": '\\"',
    "quotes": '"',
    "brackets": "[",
    "lists": '{"a": [',
    "strings": '{"a": "',
    "commas": ", ",
    "closers": "</think>",
    "openers": "<think>",
    "fences": "```",
    "comments": "{a /*",
    "lines": "{a #",
    "both quotes": "{'a{\"",
    "backslashes": "\\",
    "spaces": "{ ",
    "whole": '{"a": 1}',
    "bare": "{a: b ",
    "cut": "{'a': 1, 'b': </think>",
    "ticks": "{a: 1 `",
    "stars": "*",
    "digits": "9",
    "words": "{a: x",
    "colons": "{a::",
    "stops": '{"a"```',
    "surrogates": "\ud800{'",
}


@pytest.mark.parametrize(
    "start", ["", '{"a":', "{'a': [", '{"', "{a /*", '{"a": "', '{"a":' * 300 + "["]
)
def test_hostile_texts_take_little_time(start):
    for name, unit in HOSTILE.items():
        for end in ("", "}"):
            text = start + unit * (10_000 // len(unit)) + end
            begin = time.process_time()
            assert all(isinstance(found, dict) for found in read_json(text))
            assert time.process_time() - begin < 1, name


# ---- two answers that differ are none

YES, NO = '{"score": 1, "why": "y"}', '{"score": 0, "why": "n"}'


@pytest.mark.parametrize(
    "text",
    [
        f"{NO}\n\nThe candidate wrote: {YES}",
        f"{YES} is what the candidate wants. My verdict: {NO}",
        f"{NO}\n> {YES}",
        f"```json\n{NO}\n```\n```json\n{YES}\n```",
        f"{NO} {{'score': 1, 'why': 'y'}}",
        f"{NO} {{score: 1, why: 'y',}}",
        f"[{NO}, {YES}]",
        f'{NO} {{"why": "n", "score": "1"}}',
        f'{NO} {{"score": 1, "why": "y", "mood": 2}}',
        f'{{"score": 0, "why": "it says "so""}} and {YES}',
        '{"score": 0, "why": "n", "score": 1}',
        f'{{"score": "low", "why": "n"}} and {YES}',
        f'{{"score": false, "why": "n"}} and {YES}',
        f'{{"explanation": "n", "score": 0}} It wrote {YES}',
        f'```json\n{{"score": 0}}\n```\nIt wrote {YES}',
        f'{YES} is its. {{"result": {NO}}}',
        f'{{"Score": 0, "Why": "n"}} {YES}',
        f'The form is {{"score": "0 to 1", "why": "text"}}. {NO}',
    ],
)
def test_a_verdict_that_is_quoted_never_wins(text):
    with pytest.raises(ValueError):
        read_answer(text, VERDICT)


@pytest.mark.parametrize(
    "text",
    [
        f"<think>Is it {YES}? No.</think>{NO}",
        f"Perhaps {YES}.</think>{NO}",
        f"{NO} As I said: {NO}",
        f'{NO} {{"why": "n", "score": 0.0}}',
        f'{{"candidate": "x"}} {NO}',
        f'{{"text": "score"}} {NO} {{"input": {{"text": 1}}}}',
        json.dumps({"score": 0, "why": f"it wrote {YES}"}),
    ],
)
def test_one_verdict_beside_other_objects_is_read(text):
    assert read_answer(text, VERDICT)["score"] == 0


@pytest.mark.parametrize(
    "text, score",
    [
        (f"It wrote {YES}. **Verdict: 0**", None),
        (f"```json\n{YES}\n```\nMy verdict is no.", None),
        (f"<think>{NO}</think>The answer is {YES}, which is no.", None),
        (YES, 1),
        (f"```json\n{YES}\n```", 1),
        (f"<think>It wrote that.</think>{YES}", 1),
        (f"My verdict: {NO}", 0),
        (f'It wrote {{"a": 1}}. My verdict: {NO}', 0),
    ],
)
def test_an_object_of_the_judged_text_beside_words_is_a_quotation(text, score):
    judged = quoted(f'So it is. {{"a": 1}} {YES}')
    request = chat(f"Write such as {NO}.\nAnswer:\n{judged}\nJudge it.", schema=VERDICT)
    if score is None:
        with pytest.raises(ValueError, match="quotes"):
            read_reply(text, request)
    else:
        assert read_reply(text, request)["score"] == score


# ---- fuzz
