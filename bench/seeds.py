"""The demo once per seed: does reinforcement learning with state alignment beat the cold start, in what time and memory?

    python bench/seeds.py --seeds 0 1 2 [--config configs/humanlm-mini.yaml] [--out results/seeds.json] [--fresh]

Runs the training command in a process of its own for each seed, one after the other (a finished run is read, not repeated,
but then its time and memory are unknown), prints a table and writes it as JSON with the command and the versions. All data are
synthetic. The peer of `humanlm` is the cold start of the same run; chance and ceiling stand beside them.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

from humanlm.core.config import read_yaml
from humanlm.core.runs import git_commit, versions
from humanlm.core.basics import atomic_write, read_jsonl, to_json

ALL = "all"


def train(config, seed, folder, fresh):
    "Run the command; seconds and MB, or None where the run had been finished before"
    command = [sys.executable, "-m", "humanlm.train", "--config", config, "--run.seed", str(seed), "--run.out", str(folder.parent),
               "--run.name", folder.name, "--fresh" if fresh else "--resume"]
    record = folder / "run.json"
    finished = not fresh and record.exists() and json.loads(record.read_text()).get("state") == "finished"
    start = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status): raise SystemExit(f"stopped: {shlex.join(command)}")
    return (None, None) if finished else (seconds, usage.ru_maxrss / 1024)


def means(results, metric):
    "Model → mean over the levels, with its interval"
    return {r["model"]: [r["mean"], r["low"], r["high"]] for r in results["rows"] if r["metric"] == metric and r["level"] == ALL}


def gain(results, a="humanlm", b="cold-start"):
    "The paired difference in state alignment, with its interval"
    found = [p for p in results["paired"] if (p["metric"], p["level"], p["a"], p["b"]) == ("state_alignment", ALL, a, b)]
    return [found[0]["diff"], found[0]["low"], found[0]["high"]] if found else None


def parsed(folder):
    "Share of the cold start's held-out answers that could be read"
    asked = [(e["scores"].get(metric) or {}) for e in read_jsonl(folder / "evaluations" / "cold-start.jsonl")
             for metric in ("state_alignment", "response_alignment")]
    return fmean(score["status"] not in ("bad format", "empty") for levels in asked for score in levels.values())


def sampled(folder):
    "The same for the first samples of training, drawn at its temperature"
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if line["step"] == 1 and line.get("parse/ok") is not None]
    return fmean(line["parse/ok"] for line in lines) if lines else None


def read(seed, folder, seconds, megabytes):
    results = json.loads((folder / "results.json").read_text())
    scores = {metric: means(results, metric) for metric in ("state_alignment", "response_alignment", "reply_state_alignment")}
    return {"seed": seed, **scores, "gain": gain(results), "parsed": parsed(folder), "parsed_in_training": sampled(folder),
            "seconds": seconds, "megabytes": megabytes, "stages": json.loads((folder / "run.json").read_text())["seconds"]}


def number(value, form="6.3f"): return f"{value:{form}}" if value is not None else "–".rjust(int(form.split(".")[0]))


def show(rows):
    print(f"\n{'seed':>4} {'cold start':>10} {'humanlm':>8} {'difference, 95 % interval':>27} {'ceiling':>8} {'chance':>7} {'parsed':>7} {'sampled':>8} {'min':>6} {'MB':>6}")
    for r in rows:
        state, (diff, low, high) = r["state_alignment"], r["gain"] or [None] * 3
        minutes = r["seconds"] and r["seconds"] / 60
        print(f"{r['seed']:>4} {number(state['cold-start'][0], '10.3f')} {number(state.get('humanlm', [None])[0], '8.3f')} "
              f"{number(diff, '11.3f')} {number(low)} to {number(high)} {number(state.get('ceiling', [None])[0], '8.3f')} "
              f"{number(state.get('chance', [None])[0], '7.3f')} {number(r['parsed'], '7.3f')} {number(r['parsed_in_training'], '8.3f')} "
              f"{number(minutes, '6.1f')} {number(r['megabytes'], '6.0f')}")
    for metric in ("response_alignment", "reply_state_alignment"):
        print(f"\n{metric}")
        names = list(rows[0][metric])
        print(f"{'seed':>4} " + " ".join(f"{name:>14}" for name in names))
        for r in rows: print(f"{r['seed']:>4} " + " ".join(number(r[metric][name][0], "14.3f") for name in names))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", default="configs/humanlm-mini.yaml")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders go")
    parser.add_argument("--out", type=Path, default=Path("results/seeds.json"))
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are finished")
    args = parser.parse_args()
    name, rows = read_yaml(args.config).get("run", {}).get("name") or Path(args.config).stem, []
    for seed in args.seeds:
        folder = args.runs / f"{name}-seed{seed}"
        rows.append(read(seed, folder, *train(args.config, seed, folder, args.fresh)))
    found = {"command": shlex.join(["python", *sys.argv]), "config": read_yaml(args.config), "versions": versions(), "commit": git_commit(),
             "cpus": os.cpu_count(), "note": "synthetic world, oracle judge; scores are means over levels with 95 % intervals", "seeds": rows}
    atomic_write(args.out, to_json(found, indent=1) + "\n")
    show(rows)
    print(f"\nwritten to {args.out}")


if __name__ == "__main__": main()
