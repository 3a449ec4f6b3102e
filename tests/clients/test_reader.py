"""Reading JSON that models write: nothing is lost, nothing is invented, nothing takes long."""

import json
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mangle import SPELLING

from humanlm.clients.reader import _surely, read_answer, read_json

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
prose = st.text(st.characters(exclude_characters="{<", exclude_categories=["Cs"]), max_size=40)


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


@pytest.mark.parametrize(
    "text, wanted",
    [
        ('{"a": 1,}', {"a": 1}),
        ("{a: 1}", {"a": 1}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ('{"a": .5, "b": +1}', {"a": 0.5, "b": 1}),
        ("{1: True, 'b': None, 'c': [False,],}", {"1": True, "b": None, "c": [False]}),
        ('{"a": /* b */ 1, // c\n "d": 2 # e\n}', {"a": 1, "d": 2}),
        ('{"a": "x\ny\tz\x01",}', {"a": "x\ny\tz\x01"}),
        ('{"a": "\\d \\frac \\u12"}', {"a": "\\d \frac \\u12"}),
        ('{"a": "// b # c /* d */",}', {"a": "// b # c /* d */"}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": 1\n```\nDone.', {"a": 1}),
        ('[{"a": 1}]', {"a": 1}),
        ('{"a": {"b": {},},}', {"a": {"b": {}}}),
        ("{'a': '\\x41\\U0001f68b',}", {"a": "A🚋"}),
    ],
)
def test_spellings_by_hand(text, wanted):
    assert next(read_json(text)) == wanted


# ---- nothing is invented


def within(part, whole):
    "What is left of an object that was cut: fewer keys, shorter lists, the same scalars"
    if isinstance(whole, dict):
        return isinstance(part, dict) and all(
            k in whole and within(v, whole[k]) for k, v in part.items()
        )
    if isinstance(whole, list):
        return isinstance(part, list) and len(part) <= len(whole) and all(map(within, part, whole))
    return type(part) is type(whole) and part == whole


@settings(QUICK, max_examples=40)
@given(
    objects.filter(bool),
    st.sampled_from([json.dumps, repr, lambda v: json.dumps(v, indent=1) + "\n"]),
)
def test_a_cut_never_makes_a_value(wanted, spell):
    text = spell(wanted)
    for end in range(len(text)):
        for found in read_json(text[:end]):
            assert within(found, wanted)


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
        "0.",
        "1,000",
        "0x1",
        "1_0",
        "٣",
        '"٣"',
        "0.5.1",
        "--1",
        "",
        "1 2",
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
        ("{'score': 0.5, 'why': 'they wrote " + GOOD, "'why' is a required"),
        (GOOD + ' {"score": 0.', "breaks off"),
        (GOOD + ' {"why": "they say "sure" to it", "score": 0.2}', "backslash"),
        ('{"why": "they say "sure, ' + GOOD + '", "score": 0.2}', "backslash"),
        ('{"why": "x", "inner": ' + GOOD + ', "score": high}', "near"),
        ('{"inner": ' + GOOD + "}", "required"),
        ("{'why': 'it's', 'score': 1}", "backslash"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "begin"),
        ('{"score": 1 "why": "x"}', "delimiter"),
        ('{"score": 1, "why": "x"]', "delimiter"),
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
def test_hostile_texts_take_linear_time(start):
    for name, unit in HOSTILE.items():
        text = start + unit * (20_000 // len(unit))
        begin = time.process_time()
        assert all(isinstance(found, dict) for found in read_json(text))
        assert time.process_time() - begin < 0.6, name


# ---- fuzz

CORPUS = [
    SPELLING[s](random.Random(s), a)
    for s in SPELLING
    for a in [{"score": 0.5, "why": 'He said "no" {to} it\\s'}]
    if s not in ("reasoning",)
] + [
    "<think>\n{'score': 1, 'why': ",
    "</think>",
    "```json\n",
    "\n```",
    '{"a": [{"b": "\\u00e9',
    "NaN",
    "{{{[[[",
    "\\\\\\",
    "'\"'\"",
    "// x\n# y /* z",
    "\x00\ud800\U0001f68b",
    "0.",
    ",,::}}]]",
]


def scrambled(rng):
    "Splice pieces of the corpus, and now and then random characters"
    parts = []
    for _ in range(rng.randrange(1, 4)):
        source = rng.choice(CORPUS)
        at = rng.randrange(len(source))
        parts.append(source[at * rng.randrange(2) :][: rng.randrange(1, 80)])
    if rng.random() < 0.2:
        parts.insert(rng.randrange(3), rng.randbytes(rng.randrange(30)).decode("latin-1"))
    return "".join(parts)


def check(text, schema, plain=(type(None), bool, int, float, str)):
    "Read a text in both ways; tell whether it held an answer"
    for found in read_json(text):
        assert type(found) is dict
        rest = [found]
        while rest:
            value = rest.pop()
            rest += (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else []
            )
            assert isinstance(value, (dict, list, *plain)) and (
                type(value) is not float or math.isfinite(value)
            )
            assert not isinstance(value, dict) or all(type(key) is str for key in value)
    try:
        answer = read_answer(text, schema)
    except ValueError as e:
        assert type(e) is ValueError and 0 < len(str(e)) < 500 and str(e).isprintable()
        return False
    assert type(answer) is dict
    return True


def test_fuzz():
    rng, read, slowest = random.Random(0), 0, 0.0
    for _ in range(12_000):
        text, begin = scrambled(rng), time.process_time()
        if check(text, VERDICT):
            read += 1
            assert type(read_answer(text, VERDICT)["score"]) in (int, float)
        slowest = max(slowest, time.process_time() - begin)
    assert 300 < read < 11_400, "the inputs are all good or all bad, and test nothing"
    assert slowest < 0.5


# ---- the short walk beside jsonschema

schemas = st.recursive(
    st.sampled_from(["string", "number", "integer", "boolean", "null", ["number", "null"]]).map(
        lambda kind: {"type": kind}
    )
    | st.just({"enum": [1]})
    | st.just({}),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": more,
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            st.sampled_from([False, True]),
        )
    ),
    max_leaves=6,
)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(schemas, plain_values)
def test_what_the_short_walk_accepts_jsonschema_accepts(schema, value):
    import jsonschema

    if _surely(value, schema):
        jsonschema.validate(value, schema)
