"Files of rows: broken lines, odd encodings, folders, the hub."

import csv
import gzip
import json
import sys
import tracemalloc

import pytest
import raw_rows
from raw_rows import CALLED

from humanlm.core.basics import DataError
from humanlm.data.files import (
    Faults,
    RowFault,
    _hub_items,
    on_hub,
    read_rows,
    utc_seconds,
)
from humanlm.data.rows import _map_row, rows_source
from humanlm.hierarchy.prompts import name_speakers


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
    want = [_map_row("news", raw).id for raw in raws]
    for file in sorted(tmp_path.iterdir()):
        assert [e.id for e in rows_source("youtube", file, Faults())] == want, file.name


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.json"])
@pytest.mark.parametrize("indent", [None, 1])
def test_one_list_is_read_as_rows(tmp_path, name, indent):
    rows = [{"a": 1}, 2, {"a": "\ud83d!"}, [{"role": "user", "content": "hi"}]]
    text = json.dumps(rows, indent=indent).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    faults = Faults()
    talk = {"messages": rows[3]}
    assert values(tmp_path / name, faults) == [{"a": 1}, {"a": "\ufffd!"}, talk]
    assert faults.counts == {"broken JSON": 1}
    assert f"{name}, row 2" in faults.examples["broken JSON"].values()


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
    assert faults.counts == {"broken JSON": 3}
    places = {f"r.jsonl, row {n}" for n in (2, 4, 5)}
    assert set(faults.examples["broken JSON"].values()) == places
    with pytest.raises(RowFault, match="r.jsonl, row 2"):
        list(read_rows(file))


def test_old_tables_mix_encodings_and_line_ends(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(
        b'\xef\xbb\xbfuser_id,completion\r\nann,"caf\xe9\r\nnoir"\r\n'
        b"ben,na\xc3\xafve\r\ncleo,x\r\ndan,a,b\r\n"
    )
    faults = Faults()
    assert [r["completion"] for r in values(file, faults)] == [
        "café\nnoir",
        "naïve",
        "x",
    ] or faults.counts
    assert faults.counts == {"broken CSV": 1}


def test_times_in_nanoseconds_are_read_without_pandas(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setitem(sys.modules, "pandas", None)
    moment = 1518652800_123456789
    stamp = pa.timestamp("ns")
    columns = {
        "plain": pa.array([moment], stamp),
        "zone": pa.array([moment], pa.timestamp("ns", "Europe/Berlin")),
        "unknown zone": pa.array([moment // 10**9], pa.timestamp("s", "Mars/Base")),
        "encoded": pa.array([moment], stamp).dictionary_encode(),
        "clock": pa.array([1], pa.time64("ns")),
        "took": pa.array([moment], pa.duration("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    (row,) = values(tmp_path / "r.parquet")
    times = [row["plain"], row["zone"], row["encoded"]]
    assert [utc_seconds(time) for time in times] == [1518652800.123456] * 3
    assert utc_seconds(row["unknown zone"]) == 1518652800.0
    assert [utc_seconds(row[name]) for name in ("clock", "took")] == [None] * 2


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
    found = [_map_row("reddit", raw) for _, _, raw in _hub_items(str(tmp_path), "train.*")]
    assert [r.reply for r in found] == ["train0"] * 2 + ["train1"] * 2
    assert [m["name"] for m in name_speakers(found[0].messages, found[0].user_id)] == CALLED[
        "reddit"
    ]


def test_reading_does_not_hold_the_file(tmp_path):
    raw = lines([raw_rows.reddit() | {"completion": "word " * 800}])
    (tmp_path / "r.jsonl").write_bytes(raw * 4000)
    tracemalloc.start()
    for row in read_rows(tmp_path / "r.jsonl"):
        _map_row("reddit", row.values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * (tmp_path / "r.jsonl").stat().st_size
