"""What each shipped file of settings holds on the GPUs that it names, as a table.

python bench/plans.py
"""

import re
from pathlib import Path
from typing import NamedTuple

from humanlm.core.config import read_yaml
from humanlm.training.memory import GPUS
from humanlm.training.run import gpu_plan, read_settings

CONFIGS = Path(__file__).parents[1] / "configs"
NEEDS = {  # what a file leaves to a command line
    "humanlm-qwen.yaml": ["--data.path", "FILE"],
    "humanlm-threads.yaml": ["--data.path", "FILE"],
    "engines/lora.yaml": ["--config", str(CONFIGS / "paper" / "humanlm.yaml")],
    **{  # the model that the warm-up trains
        f"classmate/readme-{name}.yaml": ["--model.name", "Qwen/Qwen3-0.6B"]
        for name in ("baseline", "classmate", "self")
    },
}


class Planned(NamedTuple):
    name: str  # of the file
    hardware: str  # that its head names
    gpus: str  # that its settings name; empty: none
    need: float  # GiB of a GPU, in the fullest stage
    have: int  # GiB
    fits: bool

    def __str__(self) -> str:
        nothing = "nothing is trained" if self.gpus else "no GPU"
        need = f"{self.need:.1f} of {self.have}" if self.need else nothing
        return f"| `{self.name}` | {self.hardware} | {need} | {'yes' if self.fits else 'no'} |"


def head(path: Path) -> str:
    "Give the hardware that the first comment of a file names"
    lines = "".join(re.findall(r"\A(?:#.*\n)*", path.read_text()))
    named = re.search(r"Fits (\d+ x \w+)|(CPU)", lines)
    return named[1] or "two CPU cores" if named else ""


def planned(path: Path) -> Planned:
    "Plan one file"
    name, words = path.relative_to(CONFIGS).as_posix(), head(path)
    if words == "two CPU cores":
        tiny = "Qwen" not in path.read_text()
        return Planned(name, words, "", 0.0, 0, tiny)
    settings = read_settings(["--config", str(path), *NEEDS.get(name, [])])[1]
    lines = "\n".join(gpu_plan(settings))
    needs = re.findall(r" ([\d.]+) while it \w+: ", lines)
    bad = re.search("may fail|does not fit|refused", lines)
    gpus, gpu = settings.plan.gpus, settings.plan.gpu
    return Planned(
        name, words, f"{gpus} x {gpu}", max(map(float, needs), default=0.0), GPUS[gpu], not bad
    )


def shipped() -> list[Path]:
    "Find the files of settings that can be run: no base of others, no file of accelerate"
    files = sorted(CONFIGS.rglob("*.yaml"))
    return [f for f in files if f.stem != "shared" and "compute_environment" not in read_yaml(f)]


if __name__ == "__main__":
    print("| config | hardware its file names | plan: need of have, GiB per GPU | fits |")
    print("|---|---|---|---|", *map(planned, shipped()), sep="\n")
