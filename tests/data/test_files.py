"Files of rows: broken lines, odd encodings, folders, the hub, and an account of faults that no order can change."

import csv
import gzip
import json
import random
import tracemalloc
from datetime import date
from decimal import Decimal

import pytest
import raw_rows
from hypothesis import given
from hypothesis import strategies as st
from raw_rows import CALLED

from humanlm.core.basics import DataError
from humanlm.data.files import (
    Faults,
    RowFault,
    _hub_items,
    _json_line,
    _read,
    on_hub,
    read_rows,
    time_note,
    utc_seconds,
)
from humanlm.hierarchy.prompts import name_speakers
from humanlm.logs.rows import map_row, mapped_rows


def values(where, *more, **options):
    return [row.values for row in read_rows(where, *more, **options)]


def lines(raws):
    return b"".join(json.dumps(r).encode() + b"\n" for r in raws)


def test_one_row_in_every_kind_of_file(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    raws = [raw_rows.youtube() | {"completion": f"Comment number {i}"} for i in range(700)]
    flat = [r | {"prompt": json.dumps(r["prompt"])} for r in raws]
    (tmp_path / "r.jsonl").write_bytes(lines(raws))
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(lines(raws)))
    pq.write_table(pa.Table.from_pylist(raws), tmp_path / "r.parquet")
    with open(tmp_path / "r.csv", "w", newline="", encoding="utf-8") as f:
        out = csv.DictWriter(f, list(flat[0]))
        out.writeheader()
        out.writerows(flat)
    want = [map_row("news", raw).row_id for raw in raws]
    for file in sorted(tmp_path.iterdir()):
        assert [m.row.row_id for m in mapped_rows("youtube", read_rows(file), Faults())] == want, (
            file.name
        )


def test_broken_lines_are_counted_with_their_place(tmp_path):
    good = lines([raw_rows.reddit()])
    file = tmp_path / "r.jsonl"
    file.write_bytes(
        good
        + good[:50]
        + b"\n\n"
        + b'"text"\n'
        + b"[1]\n"
        + good.replace(b"rude", b"r\xfcde")
        + b"\xef\xbb\xbf"
        + good
        + good[:-1]
    )
    faults = Faults()
    assert [row.row for row in read_rows(file, faults)] == [1, 6, 7, 8]
    assert faults.counts == {"broken JSON": 3, "wrong encoding": 1} and set(
        faults.examples["broken JSON"].values()
    ) == {f"r.jsonl, row {n}" for n in (2, 4, 5)}
    with pytest.raises(RowFault, match="r.jsonl, row 2"):
        list(read_rows(file))


def test_old_tables_mix_encodings_and_line_ends(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(
        b'\xef\xbb\xbfuser_id,completion\r\nann,"caf\xe9\r\nnoir"\r\nben,na\xc3\xafve\rcleo,x\r\ndan,a,b\r\n'
    )
    faults = Faults()
    assert [r["completion"] for r in values(file, faults)] == [
        "café\nnoir",
        "naïve",
        "x",
    ] or faults.counts
    assert faults.counts == {"wrong encoding": 1, "broken CSV": 1}


def test_lines_that_end_in_a_bare_return_are_cut_nowhere_else(tmp_path):
    (tmp_path / "r.csv").write_bytes(
        "user_id,completion\rann,one\x0ctwo\x85three\u2028four\rben,five\r".encode()
    )
    assert values(tmp_path / "r.csv") == [
        {"user_id": "ann", "completion": "one\x0ctwo\x85three\u2028four"},
        {"user_id": "ben", "completion": "five"},
    ]


def test_copies_in_hidden_folders_and_folders_called_as_files_are_no_files(tmp_path):
    for name in (".ipynb_checkpoints/a.jsonl", "a.jsonl", "part.jsonl/b.jsonl", ".c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"a": 1}\n')
    assert [row.file for row in read_rows(tmp_path)] == ["a.jsonl", "part.jsonl/b.jsonl"]


def test_times_of_every_kind_are_read_and_none_ends_a_read():
    assert (
        utc_seconds(date(2024, 1, 2)) == utc_seconds("2024-01-02") == 1704153600.0
        and utc_seconds(Decimal("1704153600")) == 1704153600.0
    )
    assert time_note(date(2024, 1, 2)) == time_note(Decimal("1704153600")) == ""
    for value in (10**400, -(10**400), "9" * 5000, Decimal("1e400"), Decimal("nan"), float("inf")):
        assert (utc_seconds(value), time_note(value)) in (
            (None, "time unreadable"),
            (None, "time missing"),
        )


def test_an_open_quotation_mark_does_not_eat_the_memory(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(b'user_id,completion\nann,"open\n' + b"x" * 2**26)
    with pytest.raises(DataError, match="quotation mark may be missing"):
        list(read_rows(file))


@pytest.mark.parametrize(
    "name, data",
    [
        ("r.parquet", b"PAR1 nothing"),
        ("r.jsonl.gz", b"not gzip"),
        ("r.jsonl.gz", gzip.compress(b"{}" * 10**5)[:-20]),
    ],
)
def test_broken_files_are_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="r.*Cannot read|Cannot read.*r"):
        list(read_rows(tmp_path / name, Faults()))


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl"])
def test_utf_16_is_named(tmp_path, name):
    (tmp_path / name).write_text("user_id,completion\nann,x\n", encoding="utf-16")
    with pytest.raises(DataError, match="UTF-16. Convert it"):
        list(read_rows(tmp_path / name, Faults()))


def test_wrong_paths_say_what_to_do(tmp_path):
    (tmp_path / "r.txt").write_text("x")
    for where, what in (
        (tmp_path, "no file in this folder"),
        (tmp_path / "r.txt", "not '.txt'"),
        (tmp_path / "no.jsonl", "no such file"),
    ):
        with pytest.raises(DataError, match=what):
            read_rows(where)


def test_an_unreachable_hub_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert on_hub("snap-stanford/humanual-news")
    with pytest.raises(DataError, match="Cannot read nobody-here/no-such-rows from the hub"):
        list(read_rows("nobody-here/no-such-rows"))


def test_splits_of_a_published_set_are_chosen_by_pattern(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    splits = ("train0", "train1", "unseen_test0")
    for name in splits:
        (tmp_path / f"{name}.jsonl").write_bytes(
            lines([raw_rows.reddit() | {"completion": name}] * 2)
        )
    files = "\n".join(f"  - split: {name}\n    path: {name}.jsonl" for name in splits)
    (tmp_path / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}\n---\n"
    )
    found = [map_row("reddit", raw) for _, _, raw in _hub_items(str(tmp_path), "train.*")]
    assert [r.completion for r in found] == ["train0"] * 2 + ["train1"] * 2
    assert [m["name"] for m in name_speakers(found[0].shown().prompt, found[0].user_id)] == CALLED[
        "reddit"
    ]
    with pytest.raises(DataError, match="no split fits 'val"):
        list(_hub_items(str(tmp_path), "val.*"))


def test_reading_does_not_hold_the_file(tmp_path):
    raw = lines([raw_rows.reddit() | {"completion": "word " * 800}])
    (tmp_path / "r.jsonl").write_bytes(raw * 4000)
    tracemalloc.start()
    for row in read_rows(tmp_path / "r.jsonl"):
        map_row("reddit", row.values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * (tmp_path / "r.jsonl").stat().st_size


def test_faults_survive_a_file():
    one, two = Faults(), Faults()
    for i in range(5):
        one.add("empty reply", f"item {i}", f"row {i}")
    two.add("time missing")
    both = Faults(**json.loads(json.dumps((one + two).to_dict())))
    assert both.counts == {"empty reply": 5, "time missing": 1} and both.examples[
        "empty reply"
    ] == {f"item {i}": f"row {i}" for i in range(3)}
    assert "<b>" not in Faults({"<b>": 1}, {"<b>": {"<b>|": ""}})._repr_markdown_()


def test_examples_of_faults_do_not_depend_on_the_order_or_the_parts():
    met = [(f"kind {i % 3}", f"value {i % 11}") for i in range(60)]

    def shown(seed, parts):
        random.Random(seed).shuffle(shuffled := met * 1)
        found = [Faults() for _ in range(parts)]
        for i, what in enumerate(shuffled):
            found[i % parts].add(*what, f"row {i}")
        total = sum(found, Faults())
        return {kind: list(some) for kind, some in total.examples.items()}, dict(total.counts)

    first, *others = (shown(seed, parts) for seed in range(4) for parts in (1, 5))
    assert (
        all(other[0] == first[0] and other[1] == first[1] for other in others)
        and len(first[0]["kind 0"]) == 3
    )


HARD = (
    b'{"a": NaN}',
    b'{"a": 1e999, "b": -0.0}',
    b'{"a": 123456789012345678901234567890}',
    b'{"a": "\\ud83d"}',
    b'{"a": "\\ud83d\\ude00"}',
    b'{"a": "\xff"}',
    b'{"\xed\xa0\x80": 1}',
    b'{"a": 1, "b": 2, "a": 3}',
    b'\xef\xbb\xbf{"a": 1}',
    b'{"a": 1} x',
    b'{"a": 01}',
    b'{"a": "x\ty"}',
    b'{"a": 1.00000000000000000001}',
    b"[1]",
    b'"a"',
    b"1",
    b"null",
    b"{broken",
    b"",
    b" \n",
    b'{"a": "\\u0000\\u2028"}\r\n',
    b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
)
values_of_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=8,
)


@given(
    st.sampled_from(HARD)
    | st.binary(max_size=40)
    | st.builds(
        lambda row, plain: json.dumps(row, ensure_ascii=plain).encode("utf-8", "surrogatepass"),
        st.dictionaries(st.text(), values_of_json),
        st.booleans(),
    )
)
def test_the_quick_reader_says_what_the_careful_one_says(line):
    quick, careful = ([repr(x) for x in read(line)] for read in (_read, _json_line))
    assert quick == careful
