"""Commands in processes of their own that need not wait for torch: each is forked from a process
that has imported the libraries.

    done = warm.run("-m", "humanlm.train", "--config", path)  # as subprocess.run, with its output
    with warm.Process("-m", "humanlm.train", ...) as process: ...  # pid, poll, wait, stdout, stderr

A test of what a fresh interpreter does (which modules it loads, how many threads it takes)
starts one itself.
"""

import gc
import importlib
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import huggingface_hub.constants

LIBRARIES = [
    "openai",
    "peft",
    "trl.trainer.grpo_trainer",
    "trl.trainer.sft_trainer",
    "scipy.stats",
    "pyarrow.parquet",
    "sklearn",
    "humanlm.training.trainer",
]
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(LIBRARIES)


def work(words: list[str], folder: str, cwd: str, env: dict[str, str]) -> None:
    "Be `python WORDS`; stdin, stdout and stderr are files of a folder"
    gc.freeze()  # no collection looks through the libraries
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_RDWR | os.O_APPEND), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(0),
        open(1, "w", buffering=1),
        open(2, "w", buffering=1),
    )
    become(words, cwd, env)


def become(words: list[str], cwd: str, env: dict[str, str]) -> None:
    "Be `python WORDS`, in a process that has its files"
    os.environ.clear()
    os.environ.update(env)
    importlib.reload(huggingface_hub.constants)  # it reads the environment once
    os.chdir(cwd)
    flag, name, *argv = words if words[0] in ("-m", "-c") else ["", *words]
    sys.argv = ["-c" if flag == "-c" else name, *argv]
    sys.path.insert(0, cwd if flag else str(Path(name).parent))
    if flag == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif flag:
        exec(name, {"__name__": "__main__"})
    else:
        runpy.run_path(name, run_name="__main__")


class Process:
    "`python WORDS`, forked"

    def __init__(self, *words, stdin: str = "", cwd: Path | str = ".", env=os.environ):
        self.folder = Path(tempfile.mkdtemp(prefix="warm-"))
        for name, text in {"stdin": stdin, "stdout": "", "stderr": ""}.items():
            (self.folder / name).write_text(text, "utf-8")
        self.process = server.Process(
            target=work,
            args=([str(word) for word in words], str(self.folder), os.path.abspath(cwd), dict(env)),
        )
        self.process.start()
        self.pid = self.process.pid

    stdout = property(lambda self: (self.folder / "stdout").read_text("utf-8"))
    stderr = property(lambda self: (self.folder / "stderr").read_text("utf-8"))
    returncode = property(lambda self: self.process.exitcode)

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, sign: int) -> None:
        os.kill(self.pid, sign)

    def wait(self, timeout: float = 600) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutError(f"{self.stdout}\n{self.stderr}")
        return self.process.exitcode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        shutil.rmtree(self.folder)


def run(*words, **options) -> subprocess.CompletedProcess:
    "Wait for `python WORDS`"
    with Process(*words, **options) as process:
        process.wait()
        return subprocess.CompletedProcess(
            words, process.returncode, process.stdout, process.stderr
        )


def ranks(count: int, *words, port: int, cwd: Path | str = ".", env=os.environ) -> list[Process]:
    "Start several processes that know of each other, as those that torchrun starts"
    known = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return [
        Process(
            *words,
            cwd=cwd,
            env={**env, **{n: str(v) for n, v in (known | {"RANK": i, "LOCAL_RANK": i}).items()}},
        )
        for i in range(count)
    ]


def together(count: int, *words, **options) -> list[subprocess.CompletedProcess]:
    "Wait for such processes, which meet on CPUs"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        started = [
            stack.enter_context(process)
            for process in ranks(
                count, *words, port=port, env=os.environ | {"ACCELERATE_USE_CPU": "true"}, **options
            )
        ]
        return [
            subprocess.CompletedProcess(words, process.wait(), process.stdout, process.stderr)
            for process in started
        ]
