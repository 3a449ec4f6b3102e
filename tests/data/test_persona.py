"""Personas as text and their deterministic dropout: any persona, any share, any process."""

import json
import os
import subprocess
import sys
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.records import Persona
from humanlm.hierarchy.persona import (
    PERSONA_BLOCKS,
    _kept_fields,
    drop_persona,
    format_persona,
)

ITEM = st.text("abcdefg .!čž馬<|>", min_size=1, max_size=8)
FIELDS = st.dictionaries(
    st.sampled_from(PERSONA_BLOCKS),
    st.lists(ITEM, max_size=4) | st.dictionaries(ITEM, ITEM, max_size=3) | ITEM | st.none(),
)
PERSONA = (
    FIELDS
    | ITEM
    | st.builds(Persona, st.just("u"), st.text(max_size=20), FIELDS)
    | st.dictionaries(ITEM, st.lists(ITEM, max_size=3), max_size=3)
)
SHARE = st.floats(0, 1)
NURSE = {
    "demographics": {"location": "Leeds", "gender": "NA"},
    "interests": ["tea", "chess", "rain", "maps"],
    "values": ["fairness", "order"],
    "communication": ["dry"],
    "statistics": ["writes 40 words"],
}


def number(seed, persona, key):
    return int(md5(f"{seed}_{json.dumps(persona, sort_keys=True)}_{key}".encode()).hexdigest(), 16)


@settings(max_examples=50, deadline=None)
@given(PERSONA, SHARE, SHARE, st.integers(0, 99))
def test_the_same_persona_always_loses_the_same(persona, fields, items, seed):
    copy = json.loads(json.dumps(persona)) if isinstance(persona, dict) else persona
    first, again = (
        drop_persona(persona, fields, items, seed),
        drop_persona(copy, fields, items, seed),
    )
    assert first == again and type(first) is type(persona)
    assert isinstance(format_persona(first), str)


@pytest.mark.parametrize(
    "share, left", [(0.0, 5), (0.1, 5), (0.2, 4), (0.6, 2), (0.8, 1), (1.0, 1)]
)
def test_fields_with_the_smallest_numbers_stay(share, left):
    by_hand = sorted(PERSONA_BLOCKS, key=lambda name: number(42, NURSE, f"field_{name}"))[:left]
    assert _kept_fields(NURSE, share) == by_hand
    assert sorted(drop_persona(NURSE, fields=share)) == sorted(by_hand)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_items_go_by_their_number(share):
    def stays(item):
        return number(42, NURSE, f"item_{item}") % 10_000 / 10_000 >= share

    found = drop_persona(NURSE, items=share)
    assert found["interests"] == [item for item in NURSE["interests"] if stays(item)]
    assert found["demographics"] == {
        k: v for k, v in NURSE["demographics"].items() if stays(f"{k}:{v}")
    }


@pytest.mark.parametrize("hashseed", ["0", "1"])
def test_every_process_drops_the_same(hashseed):
    code = (
        "from humanlm.hierarchy.persona import drop_persona; import json; "
        f"print(json.dumps(drop_persona({NURSE!r}, 0.4, 0.5)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": hashseed},
    )
    assert json.loads(out.stdout) == drop_persona(NURSE, 0.4, 0.5) != NURSE
