"The record survives hostile text, wrong types, and files that are not ours."

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError, to_dict
from humanlm.core.trajectory import Score, Trajectory, Turn
from humanlm.evaluation.index import load_trajectories, save_trajectories

TEXT = st.text(max_size=40) | st.sampled_from(
    ["<stance>x</stance>", "<|im_end|>", "<script>alert(1)</script>", "a\x00b", '"}], {', "\ud800"]
)
NUMBER = st.floats(allow_infinity=False, width=64)


def make(text="hello", n=3, value=0.5, advantage=0.1, **kw):
    return Trajectory(
        "t",
        "r",
        0,
        1,
        "stance",
        (Turn("policy", text, (0, n), value),),
        [1, 2],
        list(range(n)),
        [True] * n,
        text=text,
        fields={"stance": text},
        scores={"stance": Score("a", value, "ok", text, (text,), (value,), value)},
        rewards={"alignment": value},
        advantage=advantage,
        errors=(text,),
        **kw,
    )


def round_trip(tmp_path, *rows):
    return load_trajectories(save_trajectories(tmp_path / "x.parquet", rows))


@settings(max_examples=50, deadline=None)
@given(TEXT, st.integers(0, 5), NUMBER)
def test_any_text_and_number_survive_a_file(tmp_path_factory, text, n, value):
    t = make(text.encode("utf-8", "replace").decode(), n, value, advantage=[value] * n)
    assert repr(round_trip(tmp_path_factory.mktemp("t"), t)) == repr([t])


def test_missing_score_is_not_zero(tmp_path):
    (back,) = round_trip(tmp_path, make(value=math.nan, advantage=math.nan))
    assert (
        math.isnan(back.scores["stance"].value)
        and math.isnan(back.rewards["alignment"])
        and math.isnan(back.advantage)
    )


def test_folder_is_read_in_order_of_steps(tmp_path):
    for step in (10, 2):
        save_trajectories(tmp_path / f"step-{step:05}.parquet", [replace(make(), step=step)])
    assert [t.step for t in load_trajectories(tmp_path)] == [2, 10]


def test_foreign_or_newer_file_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="layout none, expected 1"):
        load_trajectories(tmp_path / "a.parquet")
    newer = pq.read_table(
        save_trajectories(tmp_path / "b.parquet", [make()])
    ).replace_schema_metadata({"humanlm.trajectory": "9"})
    pq.write_table(newer, tmp_path / "b.parquet")
    with pytest.raises(DataError, match="layout 9, expected 1"):
        load_trajectories(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scores": {"stance": 0.5}}, "scores"),
        ({"mask": [True]}, "mask has 1 entries"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_fields_are_named(change, message):
    with pytest.raises(DataError, match=message):
        Trajectory.from_dict(to_dict(make()) | change)
