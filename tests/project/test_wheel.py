"""A wheel in a fresh environment without torch: what it weighs, and every command once.

Takes minutes and a package registry, so it is asked for:

    uv build --out-dir dist && HUMANLM_DIST=dist python -m pytest -s tests/project/test_wheel.py
"""

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    "HUMANLM_DIST" not in os.environ,
    reason="needs a built wheel and a package registry: HUMANLM_DIST=dist, where `uv build "
    "--out-dir dist` wrote",
)
MOST = 400  # MB, with the bytecode that pip writes
WITHOUT = (
    "torch",
    "transformers",
    "scipy",
    "pandas",
    "datasets",
    "matplotlib",
    "ipywidgets",
    "anthropic",
    "bert_score",
    "uvicorn",
)
TRAIN, HUB, SERVE, ANTHROPIC = (
    f"Next: pip install 'humanlm[{extra}]'" for extra in ("train", "hub", "serve", "anthropic")
)

# Every command once: a line, the exit code, and what it says. Code 0: it did its work without
# torch.
LINES = {
    "train": ("--config humanlm-mini", 2, TRAIN),
    "eval fidelity": ("", 2, "Nothing to compare"),
    "experiment": ("--config experiments/state-alignment", 2, TRAIN),
    "data": (
        "--build.path log.jsonl --build.out built --build.min_comments 2 --persona.history 5 "
        '--build.columns={"parents":"parents","thread":"thread","id":"id","time":"time"}',
        0,
        "written to built",
    ),
    "eval tom": (
        "hitom --tom.file stories/hitom.jsonl --tom.mode vanilla,context",
        0,
        "report: runs/",
    ),
    "eval": ("hitom-vanilla-symbolic hitom-context-symbolic", 0, "difference"),
    "data contexts": ("hitom --tom.file stories/hitom.jsonl", 0, "texts parsed"),
    "data stories": ("hitom --stories.n 4 --stories.out stories", 0, "eval tom hitom"),
    "eval contexts": ("", 2, "No *.json in"),
    "data parser": ("", 0, "written to"),
    "eval parsers": ("", 2, TRAIN),
    "data followups": ("dialogues --prepare.train chats.jsonl", 0, "prepared/dialogues"),
    "talk live": ("--model.name model", 2, TRAIN),
    "eval signals": ("--model.name model --signals.out seen --signals.cases cases.jsonl", 2, TRAIN),
    "eval tastes": (
        "model model --preference.tastes [short] --compare.prompts prompts.jsonl",
        2,
        TRAIN,
    ),
    "eval gyms": ("", 0, "results: "),
    "data lessons": ("", 0, "lessons.json"),
    "data questions": ("gsm8k --prepare.source sums.jsonl", 0, ""),
    "serve classmates": ("model", 2, SERVE),
    "judges audit": ("--judge.model rule", 0, "unsaid"),
    "levels": ("", 0, "stance"),
    "push": ("model", 2, TRAIN),
    "serve": ("--model.name model", 2, TRAIN),
    "study serve": ("", 0, "Flags override"),
    "study export": ("", 2, "Expected DIR FILE"),
    "study report": ("", 2, "Expected DIR"),
    "talk": ("--model.name model", 2, TRAIN),
    "view": ("runs/hitom-contexts-symbolic --dry-run", 0, "files"),
}
FIRST = ("data stories", "eval tom", "data contexts")  # what others read
MORE = [
    ("eval a b", 2, TRAIN),
    ("train --config humanlm-mini --dry-run", 0, "humanlm-mini"),
    ("train --config configs/gyms-mini.yaml --dry-run", 0, "gyms-mini"),
    ("train --config humanlm-minni", 2, "Did you mean 'humanlm-mini'?"),
    ("data --build.path own/er", 2, HUB),
    ("eval fidelity people=log.jsonl simulated=log.jsonl", 2, "humanlm[stats]"),
    ("eval tom hitom --tom.file stories/hitom.jsonl --model.name hf/x", 2, TRAIN),
    (
        "eval tom hitom --tom.file stories/hitom.jsonl --model.name anthropic/x --tom.name claude",
        2,
        ANTHROPIC,
    ),
]


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    "The environment's folder, with the wheel in it and nothing else of ours"
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder / "env", with_pip=True)
    [wheel] = Path(os.environ["HUMANLM_DIST"]).resolve().glob("*.whl")
    subprocess.run([folder / "env/bin/python", "-m", "pip", "install", "-q", wheel], check=True)
    return folder / "env"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    "A folder with a few small files to work on"
    folder = tmp_path_factory.mktemp("desk")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text('{"model_type": "llama"}')
    rows = {
        "log": [
            {
                "thread": f"t{t}",
                "id": f"{t}-{n}",
                "parents": f"{t}-{n - 1}" if n else None,
                "user": f"user{(t * 3 + n) % 7}",
                "time": 1e9 + 1000 * t + n,
                "text": f"In street {t} I would rather have {n + 2} trees than a car park, and "
                "I say so again.",
            }
            for t in range(40)
            for n in range(5)
        ],
        "cases": [
            {
                "id": "a",
                "tag": "t",
                "raw_prompt": "p",
                "unrelated_followup": "u",
                "feedback_followup": "f",
            }
        ],
        "chats": [
            {
                "messages": [
                    {"role": role, "content": f"{role} {n}"}
                    for role in ("user", "assistant", "user")
                ]
            }
            for n in range(3)
        ],
        "prompts": [{"prompt": f"What is {n} and {n}?"} for n in range(4)],
        "sums": [
            {
                "question": f"Tom has {n} apples and buys 2. How many has he?",
                "answer": f"He has {n} + 2.\n#### {n + 2}",
            }
            for n in range(20)
        ],
    }
    for name, found in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


@pytest.fixture(scope="module")
def call(light, desk):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {
        "ANTHROPIC_API_KEY": "none",
        "HF_HUB_OFFLINE": "1",
    }

    def run(*line):
        return subprocess.run(
            [light / "bin" / line[0], *line[1:]],
            cwd=desk,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    for name in FIRST:
        assert run("humanlm", *name.split(), *LINES[name][0].split()).returncode == 0, name
    return run


def test_the_core_is_light(light):
    [place] = light.glob("lib/python*/site-packages")
    own = [
        p
        for p in place.rglob("*")
        if p.is_file()
        and not p.is_symlink()
        and p.relative_to(place).parts[0].partition("-")[0] not in ("pip", "setuptools")
    ]
    size, names = (
        sum(p.stat().st_blocks for p in own) * 512 / 2**20,
        sorted(
            p.name
            for p in place.glob("*.dist-info")
            if not p.name.startswith(("pip-", "setuptools-"))
        ),
    )
    bytecode = sum(p.stat().st_blocks for p in own if p.suffix == ".pyc") * 512 / 2**20
    print(
        f"\nhumanlm without extras: {size:.0f} MB, of which bytecode {bytecode:.0f}, in "
        f"{len(names)} packages"
    )
    assert size <= MOST and not any((place / name).exists() for name in WITHOUT)


def test_every_command_is_called(call):
    code = (
        "import json; from humanlm.core.commands import COMMANDS, _commands_below as "
        "below; print(json.dumps([n for n in COMMANDS if not below(n)]))"
    )
    assert set(json.loads(call("python", "-c", code).stdout)) == set(LINES)


@pytest.mark.parametrize(
    "line, code, said",
    [
        *(
            (f"{name} {rest}", code, said)
            for name, (rest, code, said) in LINES.items()
            if name not in FIRST
        ),
        *MORE,
    ],
)
def test_a_command_does_its_work_or_says_what_to_install(call, line, code, said):
    done = call("humanlm", *line.split())
    print(
        f"\nhumanlm {line} → {done.returncode}: "
        f"{(done.stdout + done.stderr).strip().splitlines()[-1:]}"
    )
    assert (done.returncode, said in done.stdout + done.stderr, "Traceback" in done.stderr) == (
        code,
        True,
        False,
    ), done.stdout + done.stderr
    if said in (TRAIN, HUB, SERVE, ANTHROPIC):
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "code, said",
    [
        ("from humanlm import Simulator; Simulator('model', 'A baker.')", TRAIN),
        ("from humanlm.evaluation.report import axes_of; axes_of(3, 2)", "humanlm[notebooks]"),
    ],
)
def test_python_is_told_too(call, code, said):
    assert said in call("python", "-c", code).stderr.strip().splitlines()[-1]
