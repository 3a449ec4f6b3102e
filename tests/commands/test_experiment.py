"""Experiments from outside: killed and resumed, planned, refused."""

import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

import forked
import numpy as np
import pytest
import warm
import yaml

from humanlm.alignment.evaluation import load_evaluations
from humanlm.core.basics import read_jsonl
from humanlm.evaluation.measured import ALL, load_results
from humanlm.experiment import main
from humanlm.training.experiment import (
    _comparisons,
    _copy_measurements,
    _study_of,
    _trials_of,
    _twin,
    experiment_settings,
)

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "experiment": {"seeds": [0, 1], "workers": 2},
    "run": {
        "recipe": "experiments.thoughts:recipe",
        "name": "tiny",
        "methods": ["response-only", "humanlm-hetero", "humanlm-composed"],
    },
    "data": {"source": "miniworld", "max_test": 4},
    "world": {"users": 24, "replies_per_user": 12},
    "model": {"vocab": 900, "hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64},
    "hierarchy": {
        "levels": ["belief", "response"],
        "state_tokens": 12,
        "response_tokens": 16,
        "thought_tokens": 8,
    },
    "sft": {
        "lesson_steps": 2,
        "polite_steps": 1,
        "faithful_share": 0.3,
        "faithful_steps": 1,
        "batch": 8,
    },
    "rollout": {"num_prompts": 2, "group_size": 2},
    "judge": {"model": "rule"},
    "trainer": {"max_steps": 2, "save_steps": 1},
}


def write(folder: Path, **groups) -> Path:
    settings = {name: TINY.get(name, {}) | groups.get(name, {}) for name in {**TINY, **groups}}
    settings["run"] |= {"out": str(folder / "runs")}
    settings["experiment"] |= {"results": str(folder / "outcome.json")}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    return folder / "tiny.yaml"


def wait_for(what, seconds: float = 300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def begin(starter: forked.Starter, config: Path, *more: str) -> warm.Process:
    return warm.Process(
        "-m",
        "humanlm.experiment",
        "--config",
        config,
        *more,
        cwd=ROOT,
        env=os.environ | starter.env,
    )


def children(folder: Path) -> list[int]:
    "Processes that work on the runs of an experiment"
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True
    ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in found
        if "humanlm.training.experiment import" in line and str(folder) in line
    ]


# A killed experiment leaves no process behind and goes on.


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_killed_and_interrupted_experiments_leave_no_orphan_and_go_on(tmp_path):
    config, runs = write(tmp_path), tmp_path / "runs" / "tiny"
    with forked.Starter("humanlm.training.experiment import") as starter:
        with begin(starter, config) as first:
            wait_for(
                lambda: (
                    (runs / "seed-0" / "models" / "base").exists() and len(children(tmp_path)) == 2
                )
            )
            first.send_signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
        wait_for(lambda: not children(tmp_path))
        with begin(starter, config, "--resume") as second:
            wait_for(
                lambda: (
                    children(tmp_path)
                    and (runs / "seed-1" / "models" / "cold-start" / "config.json").exists()
                )
            )
            second.send_signal(signal.SIGINT)
            assert second.wait(300) == 130
        assert not children(tmp_path)
        with begin(starter, config, "--resume") as third:
            assert third.wait(900) == 0, third.stdout + third.stderr
    assert_outcome(tmp_path / "outcome.json", runs)
    assert main(["--config", str(config)]) == 2  # it exists: --resume or --fresh


def assert_outcome(path: Path, runs: Path):
    found, outcome = json.loads(path.read_text()), load_results(path)
    assert found["arms"] == ["cold-start", "response-only", "humanlm-hetero", "humanlm-composed"]
    assert found["seeds"] == [0, 1] and found["judges"] == {"training": "rule", "test": "oracle"}
    assert {"command", "versions", "commit", "intervals", "spent", "curves", "seconds"} <= set(
        found
    )
    cells = {(r.model, r.metric) for r in outcome.rows}
    assert {
        ("ceiling", "state_alignment"),
        ("humanlm-hetero", "response_alignment"),
        ("cold-start-think", "words"),
        ("humanlm-hetero (told dice)", "response_alignment"),
    } <= cells
    kept = [
        load_evaluations(runs / f"seed-{s}" / "evaluations" / "humanlm-hetero.jsonl")
        for s in (0, 1)
    ]
    values = [e.scores["state_alignment"]["belief"].value for one in kept for e in one]
    mean = next(
        r.mean
        for r in outcome.rows
        if (r.model, r.metric, r.level) == ("humanlm-hetero", "state_alignment", ALL)
    )
    assert math.isclose(mean, float(np.nanmean(values)), abs_tol=1e-4)
    tokens = {(row["arm"], row["seed"]): row["tokens"] for row in found["spent"]}
    lines = [
        row
        for _, row in read_jsonl_rows(runs / "seed-1" / "metrics.jsonl")
        if row["stage"] == "response-only"
    ]
    assert tokens["response-only", 1] == sum(row.get("tokens/generated", 0) for row in lines) > 0
    assert tokens["cold-start", 0] is None
    lines = [
        row
        for _, row in read_jsonl_rows(runs / "seed-1" / "metrics.jsonl")
        if row["stage"] == "humanlm-composed"
    ]
    assert tokens["humanlm-composed", 1] == sum(
        row.get(name, 0) for row in lines for name in ("tokens/generated", "tokens/others")
    )
    choice = found["choice"]
    assert set(choice["response_alignment"]) == {
        "humanlm-hetero (composed)",
        "humanlm-composed",
        "cold-start (states of humanlm-hetero)",
        "cold-start (states of humanlm-composed)",
    }
    assert choice["split"] == "test_seen" and choice["chosen"] == max(
        choice["response_alignment"], key=choice["response_alignment"].get
    )
    assert {(row["a"], row["seed"]) for row in choice["by_seed"]} == {
        (choice["chosen"], 0),
        (choice["chosen"], 1),
    }
    assert (
        "cold-start (composed)" in {row["b"] for row in choice["by_seed"]}
        and ("cold-start (composed)", "response_alignment") in cells
    )


def read_jsonl_rows(path: Path):
    return list(enumerate(read_jsonl(path)))


# Plans.


def test_variants_share_a_cold_start_and_its_measurements_only_where_they_are_the_same(tmp_path):
    variants = {
        "plain": {},
        "longer": {"trainer": {"max_steps": 9}},
        "faithless": {"sft": {"faithful_share": 0.0}},
        "asked": {"eval": {"reply_states": False}},
    }
    config = write(tmp_path, variants=variants, experiment={"seeds": [5], "results": None})
    recipe, settings = experiment_settings(["--config", str(config)])
    runs, study = _trials_of(recipe, settings), _study_of(recipe)
    twins = ["plain", "plain", "faithless", "plain"]
    assert [_twin(run, runs, study).variant for run in runs] == twins
    assert [run.settings.run.name for run in runs] == [f"{name}-seed-5" for name in variants]
    assert len({str(study.shared(run.settings)) for run in runs}) == 2
    runs[0].measured("cold-start").parent.mkdir(parents=True)
    runs[0].measured("cold-start").write_text("measured", "utf-8")
    for run in runs:
        _copy_measurements(run, runs, study)
    measured = [run.measured("cold-start").is_file() for run in runs]
    assert measured == [True, True, False, False]
    pairs = _comparisons(runs, study, ["cold-start"])
    assert ("longer: humanlm-hetero", "plain: humanlm-hetero") in pairs
    assert ("plain: response-only", "plain: cold-start") in pairs
    assert all(a != b for a, b in pairs) and len(set(pairs)) == len(pairs)


@pytest.mark.parametrize(
    "variants, message",
    [
        ({"x": {"sft": {"bach": 1}}}, "batch"),
        ({"x": {"sfd": {"noise": 1}}}, "no group"),
        ({"x": {"sft": 3}}, "no group"),
        ({"x": {"run": {"methods": ["humanlm-hetro"]}}}, "humanlm-hetero"),
        ({"x": {"sft": {"batch": -7}}}, "batch"),
    ],
)
def test_wrong_variants_are_refused_before_anything_starts(tmp_path, capsys, variants, message):
    config = write(tmp_path, variants=variants)
    assert main(["--config", str(config), "--dry-run"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
