"""One table of commands: every line leads somewhere, every spelling does the same, and usage lines
show what was typed."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.core.commands import COMMANDS, _commands_below, command, main
from humanlm.core.grammar import PROG

ROOT = Path(__file__).resolve().parents[2]
SPELLINGS = """
import io, json, runpy, sys
from contextlib import redirect_stdout
def said(module, *words):
    sys.argv = ["x", *words]
    with redirect_stdout(io.StringIO()) as out:
        try: runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as e: code = e.code
    return code, out.getvalue()
words = sys.argv[1:]
pairs = {w: [said("humanlm", w, "--help"), said(f"humanlm.{w}", "--help")] for w in words}
print(json.dumps(pairs))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_of_the_table_leads_to_a_function(name):
    module, function = COMMANDS[name].where.split(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert " " not in name or name.split()[0] in COMMANDS, (
        "the first word alone must list what follows it"
    )


def test_the_commands_of_the_readme_are_all_there():
    assert (
        list(_commands_below())
        == "train experiment eval data talk serve view study judges push levels".split()
    )


def test_both_spellings_give_the_same_help_with_the_line_that_was_typed():
    import json

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SPELLINGS, *_commands_below()],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for word, ((code, by_name), (other, by_module)) in json.loads(done.stdout).items():
        assert (code, other) == (0, 0)
        assert (
            f"usage: python -m humanlm {word} " in by_name
            and f"usage: python -m humanlm.{word} " in by_module
        ), word
        assert by_name.replace(f"-m humanlm {word}", f"-m humanlm.{word}") == by_module, word


@pytest.mark.parametrize(
    "argv, code, said",
    [
        ([], 0, "usage: humanlm COMMAND"),
        (["--help"], 0, "compare runs"),
        (["--version"], 0, "humanlm 0."),
        (["evla"], 2, "Did you mean 'eval'"),
        (["gyms"], 2, "Did you mean 'eval gyms'"),
        (["talk", "./nowhere", "--dry-run"], 2, "./nowhere"),
        (["train", "--run.nmae", "x"], 2, "Did you mean run.name"),
        (["train", "-h"], 0, "usage: humanlm train ["),
        (["study"], 0, "usage: humanlm study COMMAND"),
        (["judges", "audit", "-h"], 0, "usage: humanlm judges audit ["),
        (["judges", "audti"], 2, "Did you mean 'audit'"),
        (["levels"], 0, "labels-ssr"),
        (
            ["judges", "audit", "--judge.model=rule", "--dry-run"],
            0,
            "this judge calls no chat model",
        ),
    ],
)
def test_one_name_for_all_commands(capsys, argv, code, said):
    assert main(argv) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err and PROG.get() == ""


@pytest.mark.parametrize(
    "line",
    ["", *_commands_below(), "eval gyms", "eval tom", "judges audit"],
)
def test_help_is_one_screen_with_examples(capsys, line):
    assert main([*line.split(), "--help"], "humanlm") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 50 and text.count("usage:") == 1
    assert f"\n  humanlm {line}" in text.partition("options:")[0]


def test_an_error_of_ours_is_a_message_with_its_notes_and_any_other_a_traceback(capsys):
    def fail(argv):
        if argv:
            raise ValueError("a bug")
        error = ConfigError("no such file")
        error.add_note("next: look elsewhere")
        raise error

    assert (
        command("train", fail)([]) == 2
        and capsys.readouterr().err == "error: no such file\nnext: look elsewhere\n"
    )
    with pytest.raises(ValueError, match="a bug"):
        command("train", fail)(["x"])
    assert PROG.get() == ""


LIGHT = """
import sys
from importlib.machinery import PathFinder
class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in "torch transformers trl peft accelerate".split():
            return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Light
"""
ADVICE = "which is not installed. Next: pip install 'humanlm[train]'."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("light") / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "train --config configs/humanlm-mini.yaml --run.out {0}/runs",
        "serve --model.name {0}",
        "talk --model.name {0}",
        "push {0} --hub.out {0}/merged",
    ],
)
def test_a_command_without_torch_says_what_to_install(model, line):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            LIGHT + "from humanlm.core.commands import main; sys.exit(main())",
            *line.format(model).split(),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (
        done.returncode == 2
        and done.stderr.startswith("error: This needs ")
        and done.stderr.endswith(f"{ADVICE}\n")
        and done.stderr.count("\n") == 1
    )


def raising(error):
    def run(argv):
        raise error

    return run


def test_a_message_hides_passwords(capsys):
    assert (
        command("train", raising(ConfigError("no answer from http://bob:s3cret@host/v1")))([]) == 2
    )
    assert capsys.readouterr().err == "error: no answer from http://***@host/v1\n"


def ended(code):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys, time\nfrom humanlm.core.commands import command\n{code}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("sleep", ["time.sleep(60)", "run_sync(asyncio.sleep(60))"])
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_sigterm_ends_a_command_as_ctrl_c_does(sleep, background):
    "What stands in `finally` is done, also where a shell lets a background job ignore Ctrl-C"
    ignored = (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)"
        if background
        else "signal.signal(signal.SIGINT, signal.default_int_handler)"
    )
    process = ended(
        f"import asyncio, signal\nfrom humanlm.core.basics import run_sync\n{ignored}\n"
        f"def main(argv):\n    try: print('begun', flush=True); {sleep}\n    finally: "
        "print('kept', flush=True)\n"
        "code = command('train', main)([])\nassert signal.getsignal(signal.SIGTERM) is "
        "signal.SIG_DFL\nsys.exit(code)"
    )
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"kept\n") and errors.startswith(
        b"stopped; what is finished is kept"
    )


def test_a_closed_pipe_ends_a_command_quietly():
    "As in `humanlm ... | head -1`: no traceback, and the exit code of SIGPIPE"
    process = ended(
        "def main(argv):\n    for i in range(100_000): "
        "print(i)\nsys.exit(command('train', main)([]))"
    )
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""
    process.stderr.close()


def test_no_notebook_starts_its_command_when_all_cells_are_run():
    "In a notebook `__name__` is `__main__` too, and `__spec__` is None"
    bare = [
        page.name
        for page in sorted((ROOT / "nbs").rglob("*.ipynb"))
        if 'if __name__ == \\"__main__\\":' in page.read_text("utf-8")
    ]
    assert bare == [], 'write: if __name__ == "__main__" and __spec__:'
