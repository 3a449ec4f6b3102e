"""The parser against two slow but obvious readers, on any text; and the promises that it makes for
each status."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from humanlm.hierarchy.parsing import ParsePolicy, clean_reply, parse

STRICT, THINK, FLEX, FLEX_THINK = (
    ParsePolicy(strict, thinking) for strict in (True, False) for thinking in (False, True)
)
POLICIES = (STRICT, THINK, FLEX, FLEX_THINK)
PIECES = [
    "<stance>",
    "</stance>",
    "<Goal>",
    "</GOAL>",
    "<goal>",
    "</goal>",
    "<think>",
    "</think>",
    "</THINK>",
    "<b>",
    "</b>",
    "<",
    ">",
    "</",
    " ",
    "\n",
    "\r\n",
    "\t",
    "a",
    "İ",
    "ſtance",
    "<ſtance>",
    "\ud800",
    "&lt;",
    "<stance/>",
    "< goal>",
    "\x00",
    "\u2028",
]
SOUP = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)
ASKED = st.sampled_from([("stance",), ("goal",), ("goal", "stance"), ("stance", "goal")])


def thought_free(text, policy):
    "What stands behind the last </think>, however that is spelt"
    return re.split("(?i:</think>)", text)[-1] if policy.thinking else text


def slow_strict(text, levels, policy):
    "Fields of the exact format: every asked tag once, in order, blanks around; or nothing"
    text = thought_free(text, policy)
    tags = re.findall(f"(?ai)</?(?:{'|'.join(levels)})>", text)
    if [t.lower() for t in tags] != [f"<{slash}{n}>" for n in levels for slash in ("", "/")]:
        return {}
    pieces = [text]
    for tag in tags:
        pieces[-1:] = pieces[-1].split(tag, 1)
    return dict(zip(levels, pieces[1::2])) if not "".join(pieces[::2]).strip(" \r\n") else {}


def slow_flexible(text, levels, policy):
    "The regular expression that one would write first; later fields replace earlier ones"
    found = re.findall("(?ais)<([a-z][a-z0-9_]*)>(.*?)</\\1>", thought_free(text, policy))
    texts = {name.lower(): content.strip() for name, content in found}
    return {n: texts[n] for n in levels if n in texts}


@settings(max_examples=50, deadline=None)
@given(SOUP, ASKED)
@example("<stance>draft</stance></think><stance>a</stance>", ("stance",))
@example("<goal>g<stance>s</goal></stance>", ("goal", "stance"))
@example("a</think>b</THINK><stance>c</stance>", ("stance",))
@example("<ſtance>x</ſtance>", ("stance",))
def test_it_reads_what_the_slow_readers_read(text, levels):
    for policy in POLICIES:
        slow = slow_strict if policy.strict else slow_flexible
        assert parse(text, levels, policy).fields == slow(text, levels, policy), policy


@pytest.mark.parametrize(
    "text, status",
    [
        ("", "missing"),
        ("so be it", "missing"),
        ("</stance>", "missing"),
        ("<stance>a", "unterminated"),
        ("<stance>a<stance>", "unterminated"),
        ("</stance><stance>", "wrong order"),
        ("<stance>a</stance></stance>", "duplicated"),
        ("x<stance>a</stance>", "leading text"),
        ("<stance>a</stance>x", "trailing text"),
        ("<stance> \n</stance>", "empty"),
        ("<stance>a</stance>", "ok"),
    ],
)
def test_each_status_has_its_case(text, status):
    assert parse(text, "stance").status == status


@settings(max_examples=50, deadline=None)
@given(SOUP.map(lambda t: re.sub("(?i)think|response|<|>", "", t)), SOUP)
def test_the_reply_is_found_behind_any_closed_thought(reply, thought):
    thought = re.sub("(?i)<", "", thought)
    for text in (
        reply,
        f"<response>{reply}</response>",
        f"<think>{thought}</think>{reply}",
        f"{thought}</think><response>{reply}",
    ):
        assert clean_reply(text) == reply.strip()
