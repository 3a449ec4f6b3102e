"""Personas as text and their deterministic dropout (acceptance 8.7.10 of the description): any persona, any share, any process."""

import json
import os
import subprocess
import sys
import time
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.data.persona import (
    PERSONA_BLOCKS,
    _kept_fields,
    _persona_id,
    drop_persona,
    format_persona,
)
from humanlm.data.records import Persona

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


@given(PERSONA, st.integers())
def test_nothing_dropped_is_the_same_persona(persona, seed):
    assert drop_persona(persona, 0.0, 0.0, seed) is persona


@settings(max_examples=200, deadline=None)
@given(PERSONA, SHARE, SHARE, st.integers(0, 99))
def test_the_same_persona_always_loses_the_same(persona, fields, items, seed):
    copy = json.loads(json.dumps(persona)) if isinstance(persona, dict) else persona
    first, again = (
        drop_persona(persona, fields, items, seed),
        drop_persona(copy, fields, items, seed),
    )
    assert first == again and type(first) is type(persona)
    assert isinstance(format_persona(first), str)


@given(
    SHARE,
    st.sampled_from(
        [NURSE, NURSE | {"demographics": {"gender": "NA", "age": ""}}, {}, {"interests": []}]
    ),
)
def test_at_least_one_field_is_kept_and_as_many_as_the_rule_says(share, persona):
    pool = 5 if persona.get("demographics", {}).get("location") else 4
    if not persona:
        assert _kept_fields(persona, share) == []
    else:
        assert len(_kept_fields(persona, share)) == pool - min(int(share * 5), pool - 1) >= 1


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


def test_scalars_of_a_persona_are_shown_as_text():
    assert format_persona(
        {"interests": ["x"], "statistics": 12, "values": True, "communication": 0.5}
    ).splitlines()[-5:] == ["  True", "Communication:", "  0.5", "Statistics:", "  12"]


@given(st.lists(SHARE, min_size=2, max_size=2))
def test_a_higher_share_drops_more_of_the_same(shares):
    low, high = (
        {json.dumps(v) for v in drop_persona(NURSE, items=p)["interests"]} for p in sorted(shares)
    )
    assert high <= low


@given(st.text(min_size=1, max_size=200).filter(str.strip), SHARE)
def test_prose_never_loses_everything(text, share):
    persona = drop_persona(Persona("u", text, {"interests": ["never shown"]}), items=share)
    assert "never shown" not in format_persona(persona) and (
        format_persona(persona) or not text.strip(" \n\r\t")
    )


@pytest.mark.parametrize("hashseed", ["0", "1", "random"])
def test_every_process_drops_the_same(hashseed):
    code = (
        "from humanlm.data.persona import drop_persona; import json; "
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


@pytest.mark.parametrize(
    "persona",
    [
        "a. b! " * 50_000,
        "a" * 10**6,
        "\n" * 10**5,
        {"interests": [f"item {i}" for i in range(50_000)]},
    ],
)
def test_hostile_personas_take_no_longer_than_they_are_long(persona):
    start = time.process_time()
    drop_persona(persona, 0.4, 0.5)
    assert time.process_time() - start < 5


@given(FIELDS)
def test_key_order_does_not_matter(fields):
    turned = dict(reversed(fields.items()))
    assert _persona_id(turned) == _persona_id(fields) and drop_persona(
        turned, 0.4, 0.5
    ) == drop_persona(fields, 0.4, 0.5)
