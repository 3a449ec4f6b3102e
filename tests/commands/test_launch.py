"""What `humanlm launch` prints: lines that accelerate reads as they are meant, a job that a shell reads, and a start on two machines that trains."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import forked
import pytest
import warm
import yaml

from humanlm.hardware.machines import SPLIT, LaunchConfig, slurm_job
from humanlm.launch import main

ROOT = Path(__file__).parents[2]
SMALL = {
    "run": {"methods": ["humanlm"], "report": False},
    "data": {"max_train": 4, "max_test": 2},
    "world": {"users": 24, "replies_per_user": 8},
    "model": {"vocab": 700, "hidden": 48, "heads": 3, "kv_heads": 3, "mlp": 96},
    "hierarchy": {"levels": ["stance", "response"], "state_tokens": 8, "response_tokens": 8},
    "sft": {"lesson_steps": 2, "polite_steps": 2, "batch": 8, "muon_lr": 0.0},
    "rollout": {"num_prompts": 2, "group_size": 2},
    "judge": {"model": "rule"},
    "test_judge": {"model": "rule"},
    "eval": {"bootstrap": 20},
    "trainer": {"max_steps": 2},
}


def read(line):
    "Read a printed line as accelerate does"
    from accelerate.commands.launch import launch_command_parser

    words = shlex.split(line)
    assert words[:2] == ["accelerate", "launch"]
    return launch_command_parser().parse_args(words[2:])


def test_accelerate_reads_the_printed_lines_as_they_are_meant():
    lines = LaunchConfig(2, 4, address="10.0.0.1").commands(
        ["--config", "my run.yaml", "--run.seed", "3"]
    )
    for rank, line in enumerate(lines):
        a = read(line)
        assert (
            a.num_processes,
            a.num_machines,
            a.machine_rank,
            a.main_process_ip,
            a.main_process_port,
            a.use_fsdp,
        ) == (8, 2, rank, "10.0.0.1", 29500, True)
        assert (a.module, a.training_script, a.training_script_args) == (
            True,
            "humanlm.train",
            ["--config", "my run.yaml", "--run.seed", "3"],
        )
    assert read(LaunchConfig(1, 4, split=False).commands([])[0]).multi_gpu
    single = read(LaunchConfig(1, 1).commands([])[0])
    assert not single.use_fsdp and not single.multi_gpu and single.num_processes == 1


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_printed_flags_are_those_of_the_committed_files(gpus):
    file = yaml.safe_load((ROOT / "configs" / "engines" / f"accelerate-{gpus}.yaml").read_text())
    assert {name: str(value).lower() for name, value in file["fsdp_config"].items()} == {
        name: value.lower() for name, value in SPLIT.items()
    }


def test_a_job_for_slurm_starts_accelerate_once_on_each_machine_with_its_rank(tmp_path):
    job = slurm_job(
        LaunchConfig(2, 4, slurm=True, partition="big", hours=3), ["--config", "it's.yaml"], "small"
    )
    (tmp_path / "job.sh").write_text(job)
    for name, text in {
        "scontrol": "echo first; echo second",
        "srun": 'shift; SLURM_NODEID=0 "$@"; SLURM_NODEID=1 "$@"',
        "accelerate": 'printf "%s|" "$@"; echo',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "x",
        "SLURM_JOB_ID": "7",
    }
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for rank, said in enumerate(done.stdout.splitlines()):
        a = read(shlex.join(["accelerate", *said.rstrip("|").split("|")]))
        assert (a.machine_rank, a.main_process_ip, a.main_process_port, a.num_processes) == (
            rank,
            "first",
            20007,
            8,
        )
        assert a.training_script_args == ["--config", "it's.yaml", "--resume"]
    for line in ("nodes=2", "gpus-per-node=4", "time=3:00:00", "partition=big", "job-name=small"):
        assert f"#SBATCH --{line}\n" in job


def test_bad_starts_are_refused_before_anybody_waits(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SMALL), "utf-8")
    config = ["--config", str(tmp_path / "c.yaml")]
    for flags, said in (
        (["--gpus", "3"], "num_prompts (2) must be a multiple of the 3 processes"),
        (["--nodes", "0"], "nodes is 0"),
        (["--gpu", "h1000"], "Known are"),
        (["--nodes"], "--nodes needs a value"),
        (["--hours", "24:00"], "--hours is '24:00': give a whole number."),
        (["--nodes=1.5"], "--nodes is '1.5'"),
        (["--partition", "big one"], "without spaces"),
        (["--address", "10.0.0.1:6379"], "without a port"),
        (["--run.engine", "verl", "--port", "6380"], "machines find each other at Ray's, 6379"),
        (["--run.engine", "verl", "--split", "false"], "split false: verl shares"),
        (
            ["--run.engine", "verl", "--verl.gpus", "2"],
            "launch.gpus, nodes and address name the machines",
        ),
        (["--run.sead", "1"], "sead"),
        (["--gpusx", "8"], "--gpusx does not exist. Did you mean --gpus?"),
    ):
        assert main([*config, "--gpus", "2", *flags]) == 2, flags
        assert said in capsys.readouterr().err


def test_settings_are_read_with_the_machines_they_are_for(capsys):
    on_cpus = [
        "--config",
        "configs/classmate-mini.yaml",
        "--run.engine",
        "verl",
        "--verl.device",
        "cpu",
        "--verl.rollout",
        "hf",
        "--verl.tensor_parallel",
        "2",
    ]
    assert main([*on_cpus, "--nodes", "2", "--gpus", "1"]) == 0
    assert (
        "--verl.address FIRST_MACHINE:6379 --verl.nodes 2 --verl.gpus 1" in capsys.readouterr().out
    )


def test_the_memory_of_each_gpu_stands_above_the_line_where_the_shape_is_known(capsys):
    flags = ["--rollout.num_prompts", "8", "--sft.batch", "8", "--sft.muon_lr", "0", "--gpus", "8"]
    assert main(["--model.name", "Qwen/Qwen3-8B", *flags]) == 0
    said = capsys.readouterr().out
    assert (
        "# memory, GiB a GPU   8 x h100 of 79, one model shared by all (FSDP2)" in said
        and said.splitlines()[-1].startswith("accelerate launch --num_processes 8 ")
    )
    assert main(["--model.name", "some/model", *flags]) == 0
    said = capsys.readouterr().out
    assert (
        "# memory              not planned, so nothing is refused for want of it. The "
        "shape of some/model is not known"
        in said
        and "plan.gpus" not in said
        and said.splitlines()[0].endswith(".")
    )


BIG = ["--model.name", "Qwen/Qwen3-8B", "--sft.muon_lr", "0"]
ZERO = str(ROOT / "configs/engines/accelerate-8-zero3.yaml")


@pytest.mark.parametrize(
    "how", [[], ["--slurm", "true"], ["--submit", "true"], ["--slurm", "true", "--submit", "true"]]
)
def test_a_plan_that_does_not_fit_is_refused_however_it_is_started(how, capsys):
    assert main([*BIG, "--gpus", "1", *how]) == 2
    said = capsys.readouterr()
    assert (
        said.out == ""
        and "1 x 1 h100: does not fit" in said.err
        and "(--gpus, --split true)" in said.err
        and "--anyway true" in said.err
    )
    assert re.search(
        r"memory, GiB a GPU   1 x h100 of 79, one model; cold-start: .*\n  optimiser  .*\n  sum ",
        said.err,
        re.S,
    ), "the table, and whose it is"
    assert (
        "read fewer rows at once (--sft.batch 1) and train an adapter "
        "(--model.lora_rank 32 --model.dtype bfloat16)" in said.err
    ), "neither is enough alone"


def test_the_plan_above_the_line_is_the_one_of_a_dry_run(tmp_path, capsys):
    from humanlm.train import main as train

    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(SMALL | {"trainer": {"num_train_epochs": 1}}), "utf-8"
    )
    flags = ["--config", str(tmp_path / "c.yaml")]
    assert train([*flags, "--dry-run", "--plan.gpus", "2"]) == 0
    dry = capsys.readouterr().out
    assert main([*flags, "--gpus", "2"]) == 0
    above = [
        line.removeprefix("# ")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("# ")
    ]
    assert "\n".join(above) in dry and "GPU hours" in above[-1]


def test_a_plan_that_does_not_fit_is_printed_where_the_user_says_so(capsys):
    assert main([*BIG, "--gpus", "1", "--anyway", "true"]) == 0
    assert "does not fit" in capsys.readouterr().out


def test_a_job_holds_the_plan_behind_what_slurm_reads(capsys):
    assert main([*BIG, "--slurm", "true", "--rollout.num_prompts", "8", "--sft.batch", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    plan = next(
        i for i, line in enumerate(lines) if line.startswith("# memory, GiB a GPU   8 x h100")
    )
    assert (
        max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
        < plan
        < lines.index("set -euo pipefail")
    )


def test_a_plan_goes_to_stderr_where_the_output_is_the_runs(tmp_path):
    done = launched(
        started_by_python(tmp_path),
        *CLASSMATE,
        "--gpus",
        "1",
        "--submit",
        "true",
        "--anyway",
        "true",
    )
    assert (
        done.stdout.startswith("-m accelerate.commands.launch --num_processes 1 ")
        and "# memory, GiB a GPU   1 x h100" in done.stderr
    )


def test_zero_3_is_a_file_of_accelerate_for_any_number_of_machines(capsys):
    assert (
        main(
            [
                *BIG,
                "--nodes",
                "2",
                "--rollout.num_prompts",
                "16",
                "--sft.batch",
                "16",
                "--accelerate",
                ZERO,
            ]
        )
        == 0
    )
    found = capsys.readouterr().out
    a = read(next(line for line in found.splitlines()[::-1] if line.startswith("accelerate")))
    assert (
        a.config_file,
        a.num_processes,
        a.num_machines,
        a.machine_rank,
        a.deepspeed_multinode_launcher,
    ) == (ZERO, 16, 2, 1, "standard")
    assert (
        not a.use_fsdp
        and "pip install 'humanlm[deepspeed]'" in found
        and "2 x 8" not in found
        and "16 x h100" in found
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("distributed_type: [", "accelerate cannot read"),
        ("distributed_type: FSDP\nnum_procs: 8", "unknown keys"),
        (None, "does not exist"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}", "FSDP of version 1"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}", "ZeRO of stage 2"),
        ("distributed_type: 'NO'", "starts one process, and 8 were asked for"),
        ("distributed_type: XLA", "Known are FSDP"),
    ],
)
def test_a_file_that_accelerate_would_end_over_is_refused_in_a_sentence(
    text, said, tmp_path, capsys
):
    file = tmp_path / "a.yaml"
    if text is not None:
        file.write_text(
            f"{text}\ncompute_environment: LOCAL_MACHINE\nnum_processes: "
            "8\nmixed_precision: 'no'\nuse_cpu: false\ndebug: false\n"
        )
    assert (
        main([*BIG, "--rollout.num_prompts", "8", "--sft.batch", "8", "--accelerate", str(file)])
        == 2
    )
    err = capsys.readouterr().err
    assert said in err and str(file) in err and err.count("\n") == 1


def test_gpus_are_counted_against_what_the_settings_say(tmp_path, capsys):
    sized = [
        *BIG,
        "--rollout.num_prompts",
        "8",
        "--rollout.group_size",
        "4",
        "--trainer.per_device_train_batch_size",
        "2",
        "--trainer.steps_per_generation",
        "2",
        "--sft.batch",
        "8",
    ]
    assert main([*sized, "--gpus", "8"]) == 0, (
        "2 rows in 2 portions on 8 processes are the 32 of a step"
    )
    capsys.readouterr()
    (tmp_path / "four.yaml").write_text("run: {engine: verl}\nverl: {gpus: '4', nodes: '1'}\n")
    (tmp_path / "far.yaml").write_text("run: {engine: verl}\nverl: {address: 10.0.0.1:6379}\n")
    for words, said in {
        ("--gpus", "4"): "x 4 processes",
        (
            "--gpus",
            "8",
            "--plan.gpus",
            "4",
        ): "launch.nodes and gpus make 1 x 8 GPUs, and the settings say plan.gpus 4",
        ("--gpus", "3"): "Give --rollout.num_prompts 3",
        (
            "--gpus",
            "8",
            "--trainer.vllm_tensor_parallel_size",
            "3",
        ): "vllm_tensor_parallel_size (3) must divide the 8 processes",
        ("--gpus", "8", "--config", str(tmp_path / "four.yaml")): "the settings say verl.gpus 4",
        (
            "--gpus",
            "8",
            "--config",
            str(tmp_path / "far.yaml"),
        ): "the settings say verl.address 10.0.0.1:6379",
    }.items():
        assert main([*sized, *words]) == 2, words
        assert said in capsys.readouterr().err


def test_muon_is_asked_about_before_machines_are_waited_for(capsys):
    assert (
        main(["--gpus", "2"]) == 2
        and "Muon needs whole matrices, which FSDP splits" in capsys.readouterr().err
    )
    assert main(["--gpus", "2", "--split", "false"]) == 0 and main(["--gpus", "1"]) == 0


def test_an_optimiser_in_8_bits_is_not_started_over_split_matrices(capsys):
    flags = ["--gpus", "2", "--sft.muon_lr", "0", "--trainer.optim", "adamw_bnb_8bit"]
    assert main(flags) == 2 and "trainer.optim is adamw_bnb_8bit" in capsys.readouterr().err
    assert main([*flags, "--split", "false"]) == 0 and main([*flags[2:], "--gpus", "1"]) == 0


@pytest.mark.long
def test_the_lines_for_two_machines_start_one_run(tmp_path):
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(SMALL | {"run": SMALL["run"] | {"name": "two", "out": str(tmp_path)}}),
        "utf-8",
    )
    with warm.socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = LaunchConfig(2, 1, address="127.0.0.1", port=port).commands(
        ["--config", str(tmp_path / "c.yaml")]
    )
    with ExitStack() as stack:
        env = (
            os.environ
            | stack.enter_context(forked.Starter("humanlm.train")).env
            | {"ACCELERATE_USE_CPU": "true"}
        )
        words = [["-m", "accelerate.commands.launch", *shlex.split(line)[2:]] for line in lines]
        started = [
            stack.enter_context(warm.Process(*each, cwd=tmp_path, env=env)) for each in words
        ]
        assert [process.wait(500) for process in started] == [0, 0], [
            process.stderr[-2000:] for process in started
        ]
        assert sum(process.stdout.count("response_alignment") for process in started) == 1
    assert (tmp_path / "two" / "models" / "humanlm" / "model.safetensors").is_file() and len(
        list((tmp_path / "two" / "checkpoints" / "humanlm").rglob("*.distcp"))
    ) >= 2


def test_a_dry_run_says_what_a_gpu_holds_without_torch():
    code = (
        "import sys; from humanlm.train import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules); sys.exit(code)"
    )
    flags = [
        "--dry-run",
        "--model.name",
        "Qwen/Qwen3-8B",
        "--rollout.num_prompts",
        "8",
        "--plan.gpus",
        "8",
        "--plan.gpu",
        "h200",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "8 x h200 of 139, one model shared by all (FSDP2)" in done.stdout
        and "\n  optimiser " in done.stdout
        and done.stdout.endswith("False\n")
    )


def fakes(folder, **scripts):
    "Programs of the tests' own, first on the path"
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def started_by_python(folder):
    "An environment that is not activated, in which Python says what it was told to start, and ends with 7"
    (folder / "sitecustomize.py").write_text("""import os, sys
if {"humanlm.train", "accelerate.commands.launch"} & set(sys.orig_argv):
    print(*sys.orig_argv[1:], flush=True)
    os._exit(7)
""")
    return {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{ROOT}"}


def launched(env, *words, **options):
    return warm.run("-m", "humanlm.launch", *words, cwd=ROOT, env=env, **options)


CLASSMATE = ("--config", "configs/classmate-mini.yaml")
VERL = (*CLASSMATE, "--run.engine", "verl")


def test_a_job_for_ray_leads_on_the_first_machine_when_all_have_joined_and_ends_with_its_code(
    tmp_path,
):
    job = slurm_job(LaunchConfig(2, 4, slurm=True), ["--run.engine", "verl"], "small", "verl")
    env = fakes(
        tmp_path,
        scontrol="echo first; echo second",
        ray='[ "$1" = health-check ] && { echo "$3" > DIR/asked; exit 1; }; echo '
        '"$SLURM_NODEID ray $@"'.replace("DIR", str(tmp_path)),
        python='[ "$1" = -c ] && { echo "$SLURM_NODEID waits"; exit; }; echo "$SLURM_NODEID '
        '$@"; exit 3',
        sleep="exit 0",
        srun='shift 2; SLURM_NODEID=1 "$@"; SLURM_NODEID=0 "$@"',
    )
    done = subprocess.run(
        ["bash", "-c", job],
        env=env | {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == [
        "1 ray start --address first:6379 --num-gpus 4 --disable-usage-stats",
        "1 ray stop",
        "0 ray start --head --port 6379 --num-gpus 4 --disable-usage-stats",
        "0 waits",
        "0 -m humanlm.train --run.engine verl --resume --verl.address first:6379 "
        "--verl.nodes 2 --verl.gpus 4",
        "0 ray stop",
    ]
    assert (
        (tmp_path / "asked").read_text() == "first:6379\n"
    )  # a machine that joined waits for the first one's end, and ends without an error


@pytest.mark.parametrize("slurm", [False, True])
def test_a_cluster_over_machines_asks_for_a_token(slurm, tmp_path):
    launch, words = LaunchConfig(2, 4, slurm=slurm, address="first"), ["--run.engine", "verl"]
    if slurm:
        env = fakes(
            tmp_path,
            scontrol="echo first",
            ray='echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN"; [ "$1" = start ]',
            srun='shift 2; for n in 1 0; do SLURM_NODEID=$n "$@"; done',
            python="exit 0",
            sleep="exit 0",
        )

        def run():
            return subprocess.run(
                ["bash", "-c", slurm_job(launch, words, "small", "verl")],
                env=env | {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7"},
                capture_output=True,
                text=True,
            ).stdout

        (one,), (other,) = set(run().splitlines()), set(run().splitlines())
        assert re.fullmatch("token [0-9a-f]{64}", one) and one != other, (
            "one for all machines of a job, and a new one for each"
        )
    else:
        lines = [line for own in launch.ray_commands(words) for line in own]
        assert (
            all(
                line.startswith("RAY_AUTH_MODE=token ")
                for line in lines
                if "ray start" in line or "humanlm.train" in line
            )
            and "(umask 077; ray get-auth-token --generate) > /dev/null" in lines
        )
    assert (
        "disabled"
        not in slurm_job(launch, words, "small", "verl")
        + (ROOT / "docker" / "verl.Dockerfile").read_text()
    )


def test_a_signal_is_for_the_run_and_not_for_the_shell_that_leads_it(tmp_path):
    job = slurm_job(LaunchConfig(2, 4, slurm=True), ["--run.engine", "verl"], "a b", "verl")
    env = fakes(
        tmp_path,
        scontrol="echo first",
        ray='[ "$1" = stop ] && echo stopped; exit 0',
        srun='shift 2; SLURM_NODEID=0 exec "$@"',
        python='[ "$1" = -c ] && exit; trap "echo saved; exit 5" TERM; kill -TERM $PPID; kill '
        "-TERM $$; sleep 5",
    )
    done = subprocess.run(
        ["bash", "-c", job],
        env=env | {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (5, ["saved", "stopped"]), done.stderr
    assert "#SBATCH --job-name=a-b\n" in job


def test_what_is_submitted_runs_as_the_command_itself(tmp_path):
    done = launched(started_by_python(tmp_path), *VERL, "--gpus", "2", "--submit", "true")
    assert (
        done.returncode == 7
        and done.stdout.strip()
        == "-m humanlm.train --config configs/classmate-mini.yaml --run.engine verl --verl.gpus 2"
    )


def test_gpus_that_are_not_there_are_asked_for_before_processes_start_on_cpus(tmp_path):
    import torch

    count = 8 * (torch.accelerator.device_count() // 8 + 1)
    asked = (
        "--model.name",
        "Qwen/Qwen3-8B",
        "--sft.muon_lr",
        "0",
        "--sft.batch",
        str(count),
        "--rollout.num_prompts",
        str(count),
        "--gpus",
        str(count),
        "--submit",
        "true",
    )
    done = launched(started_by_python(tmp_path), *asked)
    assert (
        done.returncode == 2
        and done.stdout == ""
        and f" GPUs, and {count} were asked for. Start it where they are, or go on with "
        "--anyway true."
        in done.stderr
    )
    done = launched(started_by_python(tmp_path), *asked, "--anyway", "true")
    assert done.returncode == 7 and done.stdout.startswith(
        f"-m accelerate.commands.launch --num_processes {count} --use_fsdp "
    )


def test_a_job_is_handed_to_sbatch(tmp_path):
    done = launched(
        fakes(tmp_path, sbatch="cat; exit 4"), *VERL, "--slurm", "true", "--submit", "true"
    )
    assert (
        done.returncode == 4
        and done.stdout.startswith("#!/bin/bash")
        and "--verl.gpus 8" in done.stdout
    )


def test_what_cannot_be_started_is_said_in_a_sentence():
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        for words, said in {
            ("--nodes", "2"): "2 machines cannot be started from one",
            ("--slurm", "true"): "no sbatch here",
            ("--gpus", "2", "--port", str(port), "--anyway", "true"): f"Port {port} is in use",
        }.items():
            done = launched(
                os.environ | {"PYTHONPATH": str(ROOT)},
                *CLASSMATE,
                "--sft.muon_lr",
                "0",
                *words,
                "--submit",
                "true",
            )
            assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_what_is_only_planned_is_not_started(capsys):
    assert (
        main(["--gpus", "1", "--submit", "true", "--dry-run"]) == 0
        and "accelerate launch" in capsys.readouterr().out
    )


def test_the_container_of_verl_installs_what_is_pinned():
    file, pins = (
        (ROOT / "docker" / "verl.Dockerfile").read_text(),
        (ROOT / "constraints-verl.txt").read_text(),
    )
    assert (
        "-r constraints-verl.txt" in file
        and "pip install torch==2.13.0 && pip install torch==2.13.0 -r constraints-verl.txt"
        in pins.replace("#   ", "")
        and "torch==2.13.0" in file
    )
    assert {line.partition("==")[2] for line in pins.splitlines() if line.startswith("verl")} == {
        part.partition("==")[2].rstrip("'")
        for part in file.split()
        if part.startswith("'verl[vllm]==")
    }
    assert {".venv", "runs", ".git", "_docs"} <= set((ROOT / ".dockerignore").read_text().split())


def test_what_settings_say_stays_a_comment_of_the_lines_that_a_shell_reads():
    from humanlm.launch import _comments

    found = _comments(
        ["memory", "asked by foo\ntouch PWNED #\r\x0btouch\x1b[2J PWNED\u2028touch é"]
    )
    assert found == [
        "# memory",
        "# asked by foo",
        "# touch PWNED #",
        "# ",
        "# touch[2J PWNED",
        "# touch é",
    ]
    assert (
        subprocess.run(["bash", "-c", "\n".join(found)], capture_output=True, text=True).stderr
        == ""
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--model.name", "foo\necho PWNED"],
        ["--judge.model", "openai/foo\ntouch PWNED #"],
        ["--judge.second", "openai/foo\rtouch"],
        ["--judge.model", "embed/foo\x1b[2J"],
    ],
)
def test_a_name_of_a_model_is_one_line_of_what_can_be_printed(words, capsys):
    assert main([*words, "--gpus", "2", "--sft.muon_lr", "0", "--slurm", "true"]) == 2
    said = capsys.readouterr()
    assert (
        said.out == ""
        and "holds a line break or another character that cannot be printed" in said.err
    )
