"""Processes that the tested code itself starts with `sys.executable`, forked like those of `warm`.

    with forked.Starter("humanlm.train") as starter:  # what the words of a process must hold
        subprocess.run(["accelerate", "launch", ...], env=os.environ | starter.env)

A fresh interpreter takes ten seconds to import torch and TRL. Each such interpreter is started as
ever. Instead of importing it asks a process that has, through a socket, to fork one that gets its
files and does its work. It passes on signals, ends with the code of its fork, and where it is
killed the fork is too.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import warm

HAND_OVER = """
import sys
if any(name in word for name in {names!r} for word in sys.orig_argv[1:]):
    import json, os, signal, socket
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({place!r})
        socket.send_fds(line, [b"."], [0, 1, 2])
        told = [sys.orig_argv[1:], os.getcwd(), dict(os.environ)]
        line.sendall(json.dumps(told).encode() + b"\\n")
        told = line.makefile()
        pid = int(told.readline())
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda sign, _: os.kill(pid, sign))
        code = int(told.readline() or -9)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)
"""


class Starter:
    "As long as it is open, interpreters with these words and with `env` are forked"

    def __init__(self, *names: str):
        self.folder = Path(tempfile.mkdtemp(prefix="forked-"))
        (self.folder / "sitecustomize.py").write_text(
            HAND_OVER.format(names=names, place=str(self.folder / "line"))
        )
        self.process = warm.Process(__file__, self.folder / "line")
        self.env = {
            "PYTHONPATH": os.pathsep.join(
                [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        }

    def __enter__(self):
        while not (self.folder / "line").exists():
            assert self.process.poll() is None, self.process.stderr
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.__exit__()
        shutil.rmtree(self.folder)


def work(words: list[str], cwd: str, env: dict[str, str], files: list[int]) -> int:
    "Be that interpreter; its exit code"
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)  # what `warm` has opened as stdin, stdout and stderr
    for file in files:
        os.close(file)
    while words[0] not in ("-c", "-m"):
        words = words[1:]
    try:
        warm.become(words, cwd, env)
        return 0
    except SystemExit as e:
        return (
            e.code
            if isinstance(e.code, int)
            else int(bool(e.code) and not print(e.code, file=sys.stderr))
        )
    except BaseException:
        traceback.print_exc()
        return 1


def attend(line: socket.socket) -> None:
    "Fork for one interpreter, and stay until both are gone"
    _, files, *_ = socket.recv_fds(line, 1, 3)
    asked = line.makefile().readline()
    starter, pid = os.getppid(), os.fork()
    if not pid:
        line.close()
        code = work(*json.loads(asked), files)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    for file in files:
        os.close(file)
    line.sendall(b"%d\n" % pid)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if (
            select.select([line], [], [], 0.05)[0] or os.getppid() != starter
        ):  # nothing more is said on it: it was closed
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
    with contextlib.suppress(BrokenPipeError):
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def main(place: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        door.settimeout(0.2)
        while True:
            try:
                line, _ = door.accept()
            except TimeoutError:
                line = None
            if line and not os.fork():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                door.close()
                line.setblocking(True)
                attend(line)
                os._exit(0)
            if line:
                line.close()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass


if __name__ == "__main__":
    main(sys.argv[1])
