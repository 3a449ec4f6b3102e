"""Weights & Biases, offline: one run for a command and what goes on with it."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import warm

pytest.importorskip("wandb", reason="needs wandb: pip install -e '.[train]'")

ROOT = Path(__file__).resolve().parents[2]
LINE = [
    "-m",
    "humanlm.train",
    "--run.recipe",
    "my_recipe:Animals",
    "--run.name",
    "zoo",
    "--run.wandb",
    "animals",
    "--model.hidden",
    "32",
    "--model.heads",
    "2",
    "--model.kv_heads",
    "2",
    "--model.mlp",
    "64",
    "--model.vocab",
    "330",
    "--rollout.num_prompts",
    "4",
    "--rollout.group_size",
    "4",
    "--trainer.max_steps",
    "3",
]


def sent(folder: Path) -> list[dict]:
    "What an offline run would send: the records of its file, in LevelDB's blocks of 32 KiB"
    from google.protobuf.json_format import MessageToDict
    from wandb.proto.wandb_internal_pb2 import Record

    [path], found, begun, at = list(folder.glob("*.wandb")), [], b"", 7
    data = path.read_bytes()
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = struct.unpack_from("<HB", data, at + 4)
        begun, at = begun + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            found.append(MessageToDict(Record.FromString(begun)))
            begun = b""
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "The command, then the same again as after a kill before its evaluation"
    folder = tmp_path_factory.mktemp("wandb")
    shutil.copy(ROOT / "nbs/howto/my_recipe.py", folder)
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = warm.run(*LINE, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    run = folder / "runs/zoo"
    shutil.rmtree(run / "measured")
    for name in ("results.json", "report.html"):
        (run / name).unlink()
    (run / "run.json").write_text(
        json.dumps(json.loads((run / "run.json").read_text()) | {"state": "started"})
    )
    again = warm.run(*LINE, "--resume", cwd=folder, env=env)
    assert again.returncode == 0, again.stderr
    return run, sorted((run / "wandb").glob("offline-run-*"))


def test_a_command_is_one_run_and_goes_on_as_the_same(runs):
    run, folders = runs
    own = (run / "wandb.id").read_text()
    assert len(folders) == 2 and {folder.name.rpartition("-")[2] for folder in folders} == {own}
    said = [next(r["run"] for r in sent(folder) if "run" in r) for folder in folders]
    assert {(r["runId"], r["project"], r["displayName"]) for r in said} == {(own, "animals", "zoo")}


@pytest.mark.parametrize("key, place", [(None, ""), ("short", ""), ("short", ".env")])
def test_without_a_key_a_command_ends_in_one_sentence_and_leaves_nothing(key, place, tmp_path):
    shutil.copy(ROOT / "nbs/howto/my_recipe.py", tmp_path)
    mine = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")} | (
        {"WANDB_API_KEY": key} if key and not place else {}
    )
    if place:
        (tmp_path / place).write_text(f"WANDB_API_KEY={key}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")} | mine
    done = warm.run(*LINE, cwd=tmp_path, env=env)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "WANDB_API_KEY" in done.stderr.splitlines()[-1]
    assert ("has 5" in done.stderr) == bool(key)  # characters, so it was read
