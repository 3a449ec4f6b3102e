"Properties of records that hold for any input, and what happens when a writer is killed."

import json
import math
import signal
import subprocess
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from humanlm.core.basics import (
    DataError,
    read_jsonl,
    to_json,
    write_jsonl,
)
from humanlm.core.records import (
    Example,
    Message,
    Persona,
    from_dict,
    load_examples,
    sample_examples,
)
from humanlm.data.dataset import _split_by_context, check_leakage

settings.register_profile(
    "calm",
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("calm")

any_text = st.text(st.characters(codec=None), max_size=40)
clean_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    str.strip
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
messages = st.builds(
    Message,
    id=clean_text,
    name=clean_text,
    content=clean_text,
    time=st.none() | st.floats(allow_nan=False, allow_infinity=False) | clean_text,
    parents=st.lists(clean_text, max_size=2).map(tuple),
)
personas = st.builds(
    Persona,
    user_id=clean_text,
    text=clean_text,
    fields=st.none() | st.dictionaries(clean_text, st.lists(clean_text), max_size=2),
    evidence_ids=st.lists(clean_text, max_size=2).map(tuple),
    until=st.none() | st.integers(0, 9),
)
examples = st.builds(
    Example,
    id=clean_text,
    source=clean_text,
    split=st.sampled_from(["", "train", "test"]),
    user_id=clean_text,
    context_id=clean_text,
    persona=personas,
    context=st.lists(messages, min_size=1, max_size=3).map(tuple),
    reply=clean_text,
    order=st.integers(0, 10**9),
    states=st.none() | st.dictionaries(clean_text, clean_text, min_size=1, max_size=2),
    schema_version=st.just(1),
)
many = st.lists(examples, min_size=1, max_size=6, unique_by=lambda e: e.id)


@given(examples)
def test_records_survive_json(example):
    assert from_dict(Example, json.loads(to_json(example))) == example


@settings(max_examples=6)
@given(rows=many)
def test_rows_of_a_file_are_what_was_written(tmp_path, rows):
    assert load_examples(write_jsonl(tmp_path / "x.jsonl", rows)) == rows


@given(st.lists(st.dictionaries(any_text, any_json, max_size=3), max_size=4))
def test_jsonl_holds_any_text(tmp_path, rows):
    def plain(value):
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    assert read_jsonl(write_jsonl(tmp_path / "rows.jsonl", rows)) == plain(rows)


@given(any_json, st.sampled_from([Example, Message, Persona]))
def test_from_dict_gives_a_record_or_a_data_error(content, cls):
    try:
        assert isinstance(from_dict(cls, content), cls)
    except DataError as e:
        assert str(e).startswith("record")


town = sample_examples()
fractions = st.floats(0, 0.4)


@given(st.permutations(town), fractions, fractions)
def test_splits_are_whole_contexts_in_time_whatever_the_order(rows, test_frac, val_frac):
    split = _split_by_context(rows, test_frac, val_frac)
    assert split == _split_by_context(town, test_frac, val_frac)
    sides = {}
    for e in split:
        sides.setdefault(e.context_id, set()).add(e.split)
    assert all(len(names) == 1 for names in sides.values())
    starts = {
        name: [
            min(e.order for e in split if e.context_id == c)
            for c, (n,) in sides.items()
            if n == name
        ]
        for name in ("train", "val", "test")
    }
    order = [start for name in ("train", "val", "test") for start in sorted(starts[name])]
    assert order == sorted(order) and (test_frac == 0) == (not starts["test"])
    assert check_leakage(split) == []


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    target = write_jsonl(tmp_path / "rows.jsonl", [{"n": 1}])
    code = f"""
import time
from humanlm.core.basics import write_jsonl
def rows():
    for n in range(10**9):
        if n == 1000: print("writing", flush=True)
        yield {{"n": n}}
write_jsonl({str(target)!r}, rows())
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert read_jsonl(target) == [{"n": 1}]
