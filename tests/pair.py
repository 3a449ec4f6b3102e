"""Two processes, told what `accelerate launch` tells by a file of `configs/engines`.

    with pair.Pair() as two:
        done = two.run("--config", path, cwd=folder)  # as subprocess.run; the worse of the codes

They start once and do one command of `humanlm.train` after another. They are forked, since the
imports of torch and TRL in two fresh interpreters are most of what a small run takes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import warm

FILES = Path(__file__).parents[1] / "configs" / "engines"
GLOO = {"ACCELERATE_USE_CPU": "true"}
PATIENCE = 30  # seconds that one process may take longer than another that has failed


class Pair:
    def __init__(self, file: str = "accelerate-2.yaml", env=GLOO):
        self.file, self.env, self.processes = FILES / file, env, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        "End both; the next command starts them anew"
        for process in self.processes:
            process.__exit__()
        self.processes = []

    def start(self):
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils.launch import prepare_multi_gpu_env

        args, *_ = _validate_launch_command(
            launch_command_parser().parse_args(
                [
                    "--config_file",
                    str(self.file),
                    "--num_processes",
                    "2",
                    "--main_process_port",
                    "0",
                    __file__,
                ]
            )
        )
        launched = prepare_multi_gpu_env(args)  # chooses the port
        self.folder, self.count = Path(tempfile.mkdtemp(prefix="pair-")), 0
        self.processes = warm.ranks(
            2,
            __file__,
            self.folder,
            port=args.main_process_port,
            cwd=self.folder,
            env=launched | self.env,
        )

    def run(self, *words, cwd, timeout: float = 600) -> subprocess.CompletedProcess:
        "Let both do a command; where one fails alone, or both are gone, a new pair does the next"
        if not self.processes:
            self.start()
        job, self.count, end, failed = (
            self.folder / str(self.count),
            self.count + 1,
            time.monotonic() + timeout,
            None,
        )
        job.with_suffix(".new").write_text(json.dumps([[str(word) for word in words], str(cwd)]))
        job.with_suffix(".new").rename(job.with_suffix(".json"))
        codes = []
        while (
            len(codes) < 2
            and all(process.poll() is None for process in self.processes)
            and time.monotonic() < min(end, (failed or end) + PATIENCE)
        ):
            time.sleep(0.05)
            codes = [int(file.read_text()) for file in self.folder.glob(f"{job.name}.code.?")]
            failed = failed or (time.monotonic() if any(codes) else None)
        said = [
            file.read_text() if file.exists() else ""
            for file in (job.with_suffix(".out"), job.with_suffix(".err"))
        ]
        if len(codes) < 2:
            said[1] += "".join(process.stderr for process in self.processes)
            self.close()
        return subprocess.CompletedProcess(
            words, max(codes, key=abs) if len(codes) == 2 else 1, *said
        )


def main(folder: Path) -> None:
    from humanlm.train import main as train

    parent, count = os.getppid(), 0
    while os.getppid() == parent:
        job = folder / f"{count}.json"
        if not job.exists():
            time.sleep(0.02)
            continue
        (words, cwd), count = json.loads(job.read_text()), count + 1
        os.chdir(cwd)
        sys.path[0] = cwd
        with (
            open(job.with_suffix(".out"), "a", 1) as out,
            open(job.with_suffix(".err"), "a", 1) as err,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                code = train(words)
            except SystemExit as e:
                code = int(e.code or 0)
            except BaseException:
                traceback.print_exc()
                code = 1
        written = folder / f"{job.stem}.{os.environ['RANK']}.part"
        written.write_text(str(code))
        written.rename(folder / f"{job.stem}.code.{os.environ['RANK']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
