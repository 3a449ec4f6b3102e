"""The commands around parsers: sets, training that survives a kill, and comparisons by name."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import chdir

import pytest
from halves import stop_in_the_first

from humanlm.core.basics import read_jsonl, run_sync
from humanlm.core.commands import main
from humanlm.core.commands import main as tom
from humanlm.core.runs import read_record
from humanlm.social.generation import generate
from humanlm.social.parsing import parser
from humanlm.social.recipe import _fresh_pairs, read_pairs
from humanlm.social.requests import parse_prompt

PAIRS = list(_fresh_pairs("tomi", 60, seed=7))
TINY = [
    "--model.layers",
    "1",
    "--model.hidden",
    "32",
    "--model.heads",
    "2",
    "--model.kv_heads",
    "2",
    "--model.mlp",
    "32",
]


def result(pair, **more) -> dict:
    "A result file as published programs write them"
    return {
        "story": pair.text,
        "question": "Where?",
        "answer": "wrong",
        "socialized_context": pair.context.model_dump(),
        **more,
    }


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_what_tom_writes_feeds_the_parser_commands(family, tmp_path, capsys):
    file = {"tomi": "tomi.txt", "hitom": "hitom.jsonl"}[family]
    with chdir(tmp_path):
        assert tom(["data", "stories", family, "--stories.n=12"]) == 0
        assert (
            tom(["data", "contexts", family, f"--tom.file=stories/{file}", "--tom.name=made"]) == 0
        )
        for folder, files in (("stories/contexts", 12), ("runs/made/files", 12)):
            pairs, others = read_pairs(folder)
            assert len(pairs) == files and not others
            assert len({pair.text for pair in pairs}) == 12
            assert main(["data", "parser", "--parser.source", folder, "--parser.out", "sets"]) == 0
            assert (
                len(read_jsonl(tmp_path / "sets/train.jsonl"))
                + len(read_jsonl(tmp_path / "sets/val.jsonl"))
                == 12
            )
        capsys.readouterr()
        assert main(["eval", "parsers", "--parser.source=runs/made"]) == 0
        assert re.search(r"^f1 +1.00$", capsys.readouterr().out, re.M)
    made = json.loads((tmp_path / "stories/contexts/tale-0.json").read_text())
    tale = next(generate(family, 1, 0))
    assert (made["question"], made["answer"]) == (tale.questions[0].text, tale.questions[0].answer)
    published = {
        json.loads(path.read_text())["answer"]
        for path in (tmp_path / "runs/made/files").glob("*.json")
    }
    assert published == {""}  # nobody was asked


def test_both_families_work_without_further_settings(tmp_path):
    with chdir(tmp_path):
        for family in ("tomi", "hitom"):
            more = ["--parser.source", family, "--parser.stories", "20"]
            assert main(["data", "parser", *more, "--parser.out", family]) == 0
            assert json.loads((tmp_path / family / "counts.json").read_text())["learnt"] == 18
            assert main(["eval", "parsers", *more]) == 0


def test_chat_jsonl_and_verl_parquet_hold_the_same(tmp_path):
    import pyarrow.parquet as pq

    with chdir(tmp_path):
        assert (
            main(
                [
                    "data",
                    "parser",
                    "--parser.stories",
                    "30",
                    "--parser.held_out",
                    "0.2",
                    "--run.name",
                    "x",
                    "--parser.out",
                    "sets",
                ]
            )
            == 0
        )
    for name, count in (("train", 24), ("val", 6)):
        chats = read_jsonl(tmp_path / f"sets/{name}.jsonl")
        table = pq.read_table(tmp_path / f"sets/{name}.parquet").to_pylist()
        assert len(chats) == len(table) == count and list(table[0]) == [
            "prompt",
            "response",
            "row_id",
        ]
        assert [[m["content"] for m in row["messages"]] for row in chats] == [
            [row["prompt"], row["response"]] for row in table
        ]
        assert table[0]["response"].startswith('{"agents_names"')
    assert json.loads((tmp_path / "sets/counts.json").read_text())["stories learnt"] == 24


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with chdir(folder):
        argv = [
            "train",
            "--run.recipe",
            "parser",
            "--run.name",
            "t",
            "--parser.stories",
            "40",
            "--sft.batch",
            "4",
            *TINY,
        ]
        assert main(argv) == 0
    return folder, argv


def test_stories_that_are_too_long_for_the_model_are_left_out(tmp_path, capsys):
    argv = [
        "train",
        "--run.recipe",
        "parser",
        "--run.name",
        "long",
        "--parser.source",
        "hitom",
        "--parser.stories",
        "12",
        "--sft.batch",
        "2",
        *TINY,
    ]
    with chdir(tmp_path):
        assert main(argv) == 0
        assert "longer than the model takes: left out" in capsys.readouterr().err


def test_as_many_passes_as_the_published_training_makes(tmp_path, capsys):
    argv = [
        "train",
        "--run.recipe",
        "parser",
        "--run.name=p",
        "--parser.stories=12",
        "--sft.batch=4",
    ]
    argv += ["--trainer.num_train_epochs=3", *TINY]
    with chdir(tmp_path):
        assert main([*argv, "--dry-run"]) == 0
        plan = capsys.readouterr().out
        assert "10 records: 8 steps of 4 rows, 3 pass" in plan
        assert main(argv) == 0
    assert max(row["step"] for row in read_jsonl(tmp_path / "runs/p/metrics.jsonl")) == 8


@pytest.mark.long
def test_results_are_complete(trained):
    folder, _argv = trained
    results = json.loads((folder / "runs/t/results.json").read_text())
    means = {(row["model"], row["metric"]): row["mean"] for row in results["rows"]}
    assert list(dict.fromkeys(model for model, _ in means)) == [
        "base",
        "trained",
        "all-seeing",
        "symbolic",
    ]
    assert means["symbolic", "f1"] == 1 and means["all-seeing", "recall"] == 1
    losses = [row["loss"] for row in read_jsonl(folder / "runs/t/metrics.jsonl") if "loss" in row]
    assert results["data"]["stories learnt"] == 36 and losses[0] > losses[-1]
    assert read_record(folder / "runs/t")["state"] == "finished"


@pytest.mark.long
def test_a_trained_model_is_a_parser_that_knows_how_to_be_asked(trained):
    folder, _ = trained
    asked = parser(f"hf/{folder}/runs/t/models/trained")
    assert [asked.style, asked.example] == ["bare", False]
    row = asked.request(PAIRS[0].text, "tomi")
    assert row.schema is None and row.messages[0]["content"] == parse_prompt(
        PAIRS[0].text, style="bare", example=False
    )
    assert 0 < row.max_tokens < 1500
    assert run_sync(asked(PAIRS[0].text, "tomi")).raw


@pytest.mark.long
def test_resume_goes_on_and_other_settings_are_refused(trained, capsys):
    folder, argv = trained
    with chdir(folder):
        assert main(argv) == 2
        assert main([*argv, "--resume"]) == 0
        assert main([*argv, "--resume", "--run.seed", "5"]) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    "first", [False, True], ids=["between two checkpoints", "in the first checkpoint"]
)
def test_a_killed_run_goes_on_from_its_checkpoint(trained, tmp_path, first):
    folder, argv = trained
    shutil.copytree(folder / "runs/t", tmp_path / "runs/t")
    weights = (tmp_path / "runs/t/models/trained/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "runs/t/models/trained")
    for name in ("trained", "base"):
        (tmp_path / f"runs/t/measured/{name}.jsonl").unlink()
    (tmp_path / "runs/t/run.json").unlink()
    stage = tmp_path / "runs/t/checkpoints/trained"
    if first:
        stop_in_the_first(stage, -2)
    assert list(stage.glob("checkpoint-*"))
    with chdir(tmp_path):
        assert main([*argv, "--resume"]) == 0
    assert (tmp_path / "runs/t/models/trained/model.safetensors").read_bytes() == weights


def test_dry_run_writes_nothing_and_loads_no_torch(tmp_path):
    code = (
        "import sys; from humanlm.core.commands import main; "
        "assert main(['train', '--run.recipe', 'parser', '--run.name', 'x', '--dry-run']) == 0; "
        "assert not {'torch', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert "57 steps of 48 rows" in out.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, said",
    [
        ("hf/./nowhere", "There is no folder nowhere"),
        ("runs/none", "No provider 'runs'"),
        ("scripted/none", "No script 'none'"),
    ],
)
def test_a_plan_with_a_parser_that_does_not_exist_is_refused(name, said, capsys):
    assert main(["eval", "parsers", "--parser.names", f"[symbolic,{name}]", "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_evaluate_compares_parsers_by_name(tmp_path, capsys):
    with chdir(tmp_path):
        assert (
            main(
                [
                    "eval",
                    "parsers",
                    "--run.name",
                    "x",
                    "--parser.stories",
                    "20",
                    "--parser.names",
                    "[symbolic]",
                ]
            )
            == 0
        )
    assert "symbolic" in capsys.readouterr().out


def test_only_training_can_be_resumed(tmp_path, capsys):
    with chdir(tmp_path):
        assert main(["eval", "parsers", "--resume"]) == 2
    assert "--resume" in capsys.readouterr().err


def test_folders_can_be_the_source(tmp_path):
    (tmp_path / "files").mkdir()
    for i, pair in enumerate(PAIRS):
        (tmp_path / f"files/{i}.json").write_text(json.dumps(result(pair)))
    with chdir(tmp_path):
        assert (
            main(
                [
                    "data",
                    "parser",
                    "--run.name",
                    "x",
                    "--parser.source",
                    "files",
                    "--parser.out",
                    "sets",
                ]
            )
            == 0
        )
    assert len(read_jsonl(tmp_path / "sets/train.jsonl")) == 54
