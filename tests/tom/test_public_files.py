"""Public files as they are, with rows of our own; and sets that nobody may train on."""

import json
import random

from fantom_rows import fantom_set

from humanlm.clients.names import scripts
from humanlm.core.commands import main as parsers
from humanlm.core.commands import main as tom

# ---- sets for evaluation only


def contexts_of(name, path, folder, monkeypatch):
    "Let a scripted model write contexts of a set"
    record = {
        "agents_names": ["Ira", "Lea"],
        "socialized_context": [
            {
                "timestep": "0",
                "state": "none",
                "observations": ["Ira: none", "Lea: none"],
                "actions": ["Ira: none", "Lea: none"],
            }
        ],
    }
    monkeypatch.setitem(scripts, "writer", lambda request: json.dumps(record))
    assert (
        tom(
            [
                "data",
                "contexts",
                name,
                f"--tom.file={path}",
                f"--tom.out={folder}/runs",
                "--parser.name=scripted/writer",
                "--tom.name=made",
            ]
        )
        == 0
    )
    return folder / "runs/made/files"


def test_contexts_of_sets_for_evaluation_are_never_made_into_training_sets(
    tmp_path, capsys, monkeypatch
):
    row = fantom_set(0, random.Random(0)) | {"short_context": "Ira: Hi.\nLea: Hello."}
    (tmp_path / "fantom.json").write_text(json.dumps([row]))
    source = contexts_of("fantom", tmp_path / "fantom.json", tmp_path, monkeypatch)
    capsys.readouterr()
    words = ["data", "parser", f"--parser.source={source}", f"--parser.out={tmp_path}/set"]
    assert parsers(words) == 2
    said = capsys.readouterr().err
    assert "is of FANToM, whose authors ask never to train on it." in said
    assert said.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_rows_of_sets_for_evaluation_end_a_build(tmp_path, capsys):
    name, row = "FANToM", fantom_set(0, random.Random(0))
    from humanlm.build import main as humanual

    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert humanual([f"--build.path={tmp_path}/rows.jsonl", f"--build.out={tmp_path}/out"]) == 2
    assert (
        f"rows.jsonl, row 1 is of {name}, whose authors ask to evaluate with it and "
        "never to train on it" in capsys.readouterr().err
    )


# ---- ToMi: a container and its own room
