"Contexts survive every change of shape, decode once and for all, and keep thoughts to those who think them."
import json

import pytest
from hypothesis import given, settings, strategies as st

from humanlm.contexts import (
    NONE, Context, Step, decode, decode_warnings, from_lists, make_context, memories, perspective, read_context, to_lists, to_published)

PIECES = st.sampled_from([
    "<same_as_state />", "<same_as_last_action />", "<same_as_last_action_0 />", "<same_as_last_action_1/>", "<same_as_next_state />",
    "[SAME AS STATE]", "<mental_state>", "</mental_state>", "<same_as", "_state />", " ", ".", "none", "A", "B: ", ":", "\n", '"', "<b>"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)
NAMES = st.one_of(st.sampled_from(["A", "B", "A: B"]), TEXTS.filter(str.strip))


@st.composite
def contexts(draw) -> Context:
    "Contexts with hostile names and texts"
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    step = st.tuples(TEXTS, st.fixed_dictionaries(dict.fromkeys(names, TEXTS)), st.fixed_dictionaries(dict.fromkeys(names, TEXTS)))
    return make_context(names, draw(st.lists(step, max_size=4)))


# ---- shapes

@settings(deadline=None)
@given(contexts())
def test_lists_and_maps_hold_the_same(context):
    assert from_lists(json.loads(json.dumps(to_lists(context)))) == context
    assert read_context(json.dumps(to_published(context))).steps == context.steps


# ---- decoding

@settings(deadline=None)
@given(contexts())
def test_decoding_twice_changes_nothing(context):
    decoded = decode(context)
    assert decode(decoded) == decoded
    decode_warnings(context)
