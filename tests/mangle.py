"""Answers of a judge, mangled the way models, networks and candidates mangle them; for the fuzz
tests of reader and binder."""

import copy
import json
import random
from collections.abc import Callable
from typing import NamedTuple

WORDS = [
    "tram",
    "levy",
    "it's",
    'the "night" bus',
    "C:\\dir",
    "a\nb",
    "{",
    "}",
    "[1, 2]",
    "é",
    "🚋",
    "</think>",
    "```",
    "score: 1",
    "# no",
    "//",
    "\\",
    "",
    "'",
    "no",
]
PROSE = [
    "Sure, here it is:\n",
    "I compared them. ",
    "Result → ",
    "Let x = {a, b} and \\frac{1}{2}. ",
    "**Verdict**\n\n",
]


def closed(properties: dict) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


NUMBER, TEXT = {"type": "number"}, {"type": "string"}
GROUP = closed(
    {
        "key_points": {"type": "array", "items": TEXT},
        "verdicts": {
            "type": "array",
            "items": closed(
                {
                    "id": TEXT,
                    "matches": {"type": "array", "items": NUMBER},
                    "penalty": NUMBER,
                    "score": NUMBER,
                    "reason": TEXT,
                }
            ),
        },
    }
)


class Mangled(NamedTuple):
    text: str  # what the reader gets
    answer: dict  # what the judge meant: key_points and verdicts, one per id
    faults: tuple[str, ...]  # what was done, in order; keys of `SPELLING`, `CONTENT` or `DAMAGE`


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(5)))


def group_answer(rng: random.Random, ids: list[str] | None = None) -> dict:
    "Make a good answer about a group"
    ids = ids or [f"k{rng.randrange(16**4):04x}{i}" for i in range(rng.randrange(1, 5))]
    points = [words(rng) for _ in range(rng.randrange(1, 4))]
    verdicts = [
        {
            "id": id,
            "matches": [round(rng.random(), 2) for _ in points],
            "penalty": round(rng.random() / 2, 2),
            "score": round(rng.random(), 2),
            "reason": words(rng),
        }
        for id in ids
    ]
    return {"key_points": points, "verdicts": verdicts}


# ---- spelling: the meaning stays, and a reader must find it


def insert_comments(rng, text):
    return text.replace("\n", rng.choice([" // fine\n", " # so\n", "\n/* hm */ "]))


def indented(answer):
    return json.dumps(answer, indent=2, ensure_ascii=False)


SPELLING: dict[str, Callable[[random.Random, dict], str]] = {
    "plain": lambda rng, a: json.dumps(a),
    "unescaped letters": lambda rng, a: json.dumps(a, ensure_ascii=False),
    "indented": lambda rng, a: indented(a),
    "fence": lambda rng, a: f"{rng.choice(PROSE)}```json\n{indented(a)}\n```\n{rng.choice(PROSE)}",
    "prose": lambda rng, a: rng.choice(PROSE) + json.dumps(a) + " I hope this helps {really}.",
    "reasoning": lambda rng, a: (
        f"<think>\nMaybe {json.dumps(group_answer(rng))}? It's {{hard\n</think>\n{json.dumps(a)}"
    ),
    "dangling closer": lambda rng, a: (
        f"Maybe {{'score': 1.0}}, or \"{{\".</think>\n\n{json.dumps(a)}"
    ),
    "python": lambda rng, a: repr(a),
    "raw line breaks": lambda rng, a: json.dumps(a).replace("\\n", "\n"),
    "trailing commas": lambda rng, a: (
        indented(a).replace("\n}", ",\n}").replace("]\n", "],\n").replace(",,", ",")
    ),
    "comments": lambda rng, a: insert_comments(rng, indented(a)),
}


# ---- content: standard JSON that means something else than it should


def some(rng, answer):
    return rng.choice(answer["verdicts"])


def duplicate_id(rng, a):
    a["verdicts"].append(
        dict(some(rng, a), score=0.99, matches=[1.0] * len(a["key_points"]), penalty=0.0)
    )


def drop_verdict(rng, a):
    a["verdicts"].remove(some(rng, a))


def unknown_id(rng, a):
    some(rng, a)["id"] = rng.choice(["k99", "", "1", "candidate"])


def quoted_numbers(rng, a):
    some(rng, a).update(score=rng.choice(["0.5", " 1 ", "high", "80%", "1/2", ""]), penalty="0.0")


def impossible(rng, a):
    some(rng, a)[rng.choice(["score", "penalty"])] = rng.choice(
        [float("nan"), float("inf"), 7, -1, None, True, 10**400, [], {}]
    )


def wrong_matches(rng, a):
    some(rng, a)["matches"] = rng.choice([[], [0.5] * 9, ["0.5"], [None], "0.5", {"a": 1}])


def missing_key(rng, a):
    some(rng, a).pop(rng.choice(["id", "matches", "penalty", "score", "reason"]))


def extra_key(rng, a):
    some(rng, a)["mood"] = "sure"


def wrong_shape(rng, a):
    a["verdicts"] = rng.choice([None, "none", [[]], ["x"], {v["id"]: v for v in a["verdicts"]}, {}])


def empty(rng, a):
    a.clear()


CONTENT: dict[str, Callable[[random.Random, dict], object]] = {
    f.__name__.replace("_", " "): f
    for f in (
        duplicate_id,
        drop_verdict,
        unknown_id,
        quoted_numbers,
        impossible,
        wrong_matches,
        missing_key,
        extra_key,
        wrong_shape,
        empty,
    )
}


# ---- damage: the text itself is broken


def cut(rng, text):
    return text[: rng.randrange(len(text) + 1)]


def unescape(rng, text):
    return text.replace('\\"', '"')


def splice(rng, text):
    return cut(rng, text) + text[rng.randrange(len(text) + 1) :]


def delete(rng, text):
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randrange(1, 4) :]


def insert(rng, text):
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice(
            [
                "{",
                "}",
                "[",
                "]",
                '"',
                "'",
                ",",
                ":",
                "\\",
                "`",
                "```",
                "\x00",
                "\ud800",
                "</think>",
                "<think>",
                "NaN",
                "0.",
                "//",
                "/*",
            ]
        )
        + text[at:]
    )


def twice(rng, text):
    return text + text


def noise(rng, text):
    return rng.randbytes(rng.randrange(60)).decode("latin-1") + text


DAMAGE: dict[str, Callable[[random.Random, str], str]] = {
    f.__name__: f for f in (cut, unescape, splice, delete, insert, twice, noise)
}


def mangled(
    rng: random.Random,
    answer: dict | None = None,  # a good answer with key_points and verdicts; None: one of our own
) -> Mangled:
    "Mangle an answer: one spelling always, wrong content and damage sometimes"
    answer = answer or group_answer(rng)
    changed, faults = json.loads(json.dumps(answer)), []
    if rng.random() < 0.5:
        faults.append(rng.choice(list(CONTENT)))
        CONTENT[faults[-1]](rng, changed)
    faults.append(rng.choice(list(SPELLING)))
    text = SPELLING[faults[-1]](rng, changed)
    while rng.random() < 0.4:
        faults.append(rng.choice(list(DAMAGE)))
        text = DAMAGE[faults[-1]](rng, text)
    return Mangled(text, answer, tuple(faults))


# ---- a provider's own answer, before anybody reads what the model said

ODD = [
    None,
    True,
    5,
    -1_000_000,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    "lots",
    "",
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    [None],
    {"a": {"b": []}},
    [{"type": "text", "text": "hi"}],
    {"text": "hi"},
    "DEEP",
    "LONG",
]
DEEP = b"[" * 100_000 + b"]" * 100_000  # lists in lists


def places(value, path=()):
    "Every place in a JSON value, as the keys that lead there"
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


def odd_body(rng: random.Random, body: dict) -> bytes:
    "Put something odd into one to three places of an answer, or take the place away"
    body = {"body": json.loads(json.dumps(body))}
    for _ in range(rng.randrange(1, 4)):
        *path, last = rng.choice([path for path in places(body) if path])
        inner = body
        for key in path:
            inner = inner[key]
        if len(path) > 0 and rng.random() < 0.2:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(rng.choice(ODD))
    data = (
        json.dumps(body["body"]).encode().replace(b'"DEEP"', DEEP).replace(b'"LONG"', b"9" * 5000)
    )
    damage = rng.random()
    return (
        data[: rng.randrange(len(data) + 1)]
        if damage < 0.1
        else data + rng.randbytes(9)
        if damage < 0.2
        else data
    )
