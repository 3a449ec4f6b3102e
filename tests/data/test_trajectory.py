"The record survives hostile text, wrong types, and files that are not ours."

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError, to_dict, to_json
from humanlm.data.trajectory import (
    Score,
    Trajectory,
    Turn,
    _trajectory_from_dict,
    load_trajectories,
    save_trajectories,
)

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


@settings(max_examples=60, deadline=None)
@given(TEXT, st.integers(0, 5), NUMBER)
def test_any_text_and_number_survive_a_file(tmp_path_factory, text, n, value):
    t = make(text.encode("utf-8", "replace").decode(), n, value, advantage=[value] * n)
    assert repr(round_trip(tmp_path_factory.mktemp("t"), t)) == repr([t])


@given(TEXT, NUMBER)
def test_any_text_and_number_survive_json(text, value):
    t = make(text, value=value)
    assert repr(_trajectory_from_dict(json.loads(to_json(t)))) == repr(t)


def test_lone_surrogates_do_not_lose_the_step(tmp_path):
    (back,) = round_trip(tmp_path, make("a\ud800b"))
    assert back.text == "a?b"


def test_strip_and_card_escape_everything():
    evil = "<script>alert(1)</script>"
    t = make(evil, parse_status=evil, usage={evil: 1})
    assert "<script" not in t._repr_html_() and "<script" not in t.token_strip(lambda ids: evil)


def test_missing_score_is_not_zero(tmp_path):
    (back,) = round_trip(tmp_path, make(value=math.nan, advantage=math.nan))
    assert (
        math.isnan(back.scores["stance"].value)
        and math.isnan(back.rewards["alignment"])
        and math.isnan(back.advantage)
    )


def test_empty_list_and_empty_completion(tmp_path):
    assert round_trip(tmp_path) == []
    assert round_trip(tmp_path, make(n=0))[0].completion_ids == []


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


def test_damaged_row_is_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = save_trajectories(tmp_path / "x.parquet", [make(), make()])
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(table.schema.get_field_index("scores"), "scores", pa.array(["{}", "{"])),
        path,
    )
    with pytest.raises(DataError, match=r"x.parquet, row 2: a nested column is not JSON"):
        load_trajectories(path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"turns": 3}, "not a trajectory"),
        ({"scores": {"stance": 0.5}}, "score 'stance'.* Score"),
        ({"mask": [True]}, "mask has 1 entries"),
        ({"surprise": 1}, "surprise"),
        ({"rewards": [1]}, "not a trajectory"),
    ],
)
def test_wrong_fields_are_named(change, message):
    with pytest.raises(DataError, match=message):
        _trajectory_from_dict(to_dict(make()) | change)


def test_light_import():
    code = (
        "import sys, humanlm.data.trajectory; "
        "print(sorted({'torch','pyarrow','pandas','transformers','matplotlib'} & "
        "set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )
