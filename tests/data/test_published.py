"Rows that were published in splits stay in them; what splits share is counted, not hidden."

import json

import pytest
from raw_rows import row, said

from humanlm.core.basics import DataError, write_jsonl
from humanlm.core.grammar import parse
from humanlm.core.records import load_examples
from humanlm.data.build import GROUPS, build


def rows(n, post, start=0, users=4, said_of=""):
    return [
        row(
            [
                said(
                    f"u_{(i + 1) % users}", f"question {i} of {post}", author=f"u_{(i + 1) % users}"
                )
            ],
            f"answer {i} to {said_of or post} is here",
            f"{post}{i % 5}",
            f"u_{i % users}",
            {},
            1_600_000_000 + start + 60 * i,
        )
        | {"persona": json.dumps({"interests": ["tea"] * 12})}
        for i in range(n)
    ]


def settings(path, out, *more):
    return parse(
        GROUPS,
        [
            f"--build.path={path}",
            "--build.source=reddit",
            f"--build.out={out}",
            "--build.split=published",
            "--build.min_comments=0",
            "--persona.model=given",
            "--build.sets=[rl]",
            *more,
        ],
    )


def published(tmp_path, parts):
    for name, some in parts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / "in" / name, some)
    return tmp_path / "in"


def splits(built):
    return {e.id: e.split for e in load_examples(built.folder)}


@pytest.mark.parametrize(
    "names",
    [
        ("train0.jsonl", "val0.jsonl", "unseen_test0.jsonl", "seen_test0.jsonl"),
        (
            "train/part-0.jsonl",
            "validation/part-0.jsonl",
            "test/part-0.jsonl",
            "test_seen/part-0.jsonl",
        ),
    ],
)
def test_published_rows_keep_their_splits(tmp_path, names):
    path = published(
        tmp_path,
        dict(zip(names, (rows(40, "a", 5000), rows(10, "b"), rows(20, "c"), rows(5, "d")))),
    )
    built = build(settings(path, tmp_path / "out"))
    assert built.rows == {"train": 40, "val": 10, "test": 20, "test_seen": 5}
    assert {e.split for e in load_examples(built.folder) if "to c" in e.reply} == {"test"}
    assert "split by published" in built.card


def test_shared_discussions_and_unknown_splits_are_counted(tmp_path):
    path = published(
        tmp_path,
        {
            "train.jsonl": rows(40, "a"),
            "test.jsonl": rows(20, "a", 9000, said_of="it"),
            "test_dropout.jsonl": rows(7, "x"),
        },
    )
    built = build(settings(path, tmp_path / "out"))
    record = json.loads((built.folder / "build.json").read_text())
    assert built.rows == {"train": 40, "test": 20} and record["fates"]["unsplit"] == 7
    assert "| root context in more than one split (of 5) | 5 |" in built.card


def test_published_splits_that_are_missing_or_emptied_are_errors(tmp_path):
    path = published(tmp_path, {"rows.jsonl": rows(40, "a")})
    with pytest.raises(DataError, match="no rows to split: unsplit 40"):
        build(settings(path, tmp_path / "out"))
    bare = [r | {"persona": json.dumps({"interests": ["tea"]})} for r in rows(3, "c")]
    path = published(tmp_path, {"train.jsonl": rows(40, "b"), "test.jsonl": bare})
    with pytest.raises(DataError, match="No row is left for test: .*thin persona 3"):
        build(settings(path, tmp_path / "two"))
