"The one grammar of all commands, from outside and for any input."

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from humanlm.core.config import RunConfig, hidden
from humanlm.core.grammar import parse
from humanlm.data.dataset import DataConfig
from humanlm.training.sampling import SFTConfig

settings.register_profile(
    "calm",
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("calm")

GROUPS = {
    "run": RunConfig,
    "data": DataConfig,
    "sft": SFTConfig,
    "trainer": {"learning_rate": 6e-4},
}
SCRIPT = """
import sys
from humanlm.core.commands import command
from humanlm.core.config import RunConfig
from humanlm.training.sampling import SFTConfig
from humanlm.core.grammar import parse
from humanlm.data.dataset import DataConfig
@command("demo")
def main(argv):
    groups = {"run": RunConfig, "data": DataConfig, "sft": SFTConfig, "trainer": {}}
    print(parse(groups, argv, "A demo."))
code = main()
names = "torch pandas datasets transformers trl".split()
heavy = [m for m in names if m in sys.modules]
sys.exit(f"imported {heavy}" if heavy else code)
"""


def demo(*argv):
    return subprocess.run([sys.executable, "-c", SCRIPT, *argv], capture_output=True, text=True)


@pytest.mark.parametrize(
    "argv, code, part",
    [
        (["--help", "sft"], 0, "Steps of lessons"),
        (["--version"], 0, "humanlm "),
        (["--print_config", "--sft.faithful_share", "0.25"], 0, "faithful_share: 0.25"),
        (["--dry-run"], 0, "dry_run=True"),
        (["--resume"], 0, "resume=''"),
    ],
)
def test_commands_answer_without_heavy_imports(argv, code, part):
    done = demo(*argv)
    assert (done.returncode, done.stderr) == (code, "") and part in done.stdout


@pytest.mark.parametrize(
    "argv, parts",
    [
        (
            ["--run.sed", "1", "--sft.faithful_share", "x"],
            ["2 problems", "run.seed?", "--sft.faithful_share must be float"],
        ),
        (["--config", "nowhere.yaml"], ["Cannot read nowhere.yaml"]),
        (["--sft.muon_lr", "-3"], ["sft.muon_lr must not be -3"]),
        (["--help", "credit"], ["no group credit. Choose from: run", "--run.recipe NAME --help"]),
        (
            ["--data.source", "threads", "--run.seed", "-1"],
            ["2 problems", "data.path is needed", "run.seed must be from 0"],
        ),
    ],
)
def test_problems_are_messages_and_code_two(argv, parts):
    done = demo(*argv)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


odd_text = st.sampled_from(
    [
        "off",
        "1e-5",
        "010",
        "12:30",
        "null",
        "~",
        "",
        " x",
        "#",
        "a: b",
        "2031-01-01",
        "\u2028",
        "'\"",
        "é東",
        ".5",
        "-",
    ]
)
names = st.from_regex(r"[a-z][a-z_]{2,12}", fullmatch=True)


@given(
    run=st.builds(
        RunConfig,
        name=names,
        seed=st.integers(0, 99),
        methods=st.lists(names, min_size=1, unique=True),
        token_budget=st.none() | st.integers(1, 9),
    ),
    sft=st.builds(
        SFTConfig,
        faithful_share=st.floats(0, 1),
        adam_lr=st.floats(1e-9, 1),
        lesson_steps=st.integers(0, 10**6),
    ),
    trainer=st.dictionaries(
        names,
        st.none() | st.booleans() | st.integers(-99, 99) | st.floats(1e-9, 1e9) | odd_text,
        max_size=4,
    ),
)
def test_saved_settings_read_back_the_same(tmp_path, run, sft, trainer):
    from humanlm.core.config import Settings

    asked = Settings(
        {"run": run, "data": DataConfig(), "sft": sft, "trainer": {"learning_rate": 1e-5} | trainer}
    )
    again = parse(GROUPS, ["--config", str(asked.save(tmp_path / "x.yaml"))])
    assert again.groups == asked.groups and again.fingerprint() == asked.fingerprint()


def test_flags_win_wherever_the_file_stands(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "sft: {faithful_share: 0.1}\ntrainer: {lr: 1e-5, on_cpu: true}\n"
    )
    (tmp_path / "b.yaml").write_text("sft: {faithful_share: 0.2, batch: 3}\n")
    files = [f"--config={tmp_path / name}" for name in ("a.yaml", "b.yaml")]
    for argv in (
        [*files, "--sft.faithful_share", "0.3"],
        ["--sft.faithful_share", "0.3", *files],
        [files[0], "--sft.faithful_share=0.3", files[1]],
    ):
        found = parse(GROUPS, argv)
        assert (found.sft.faithful_share, found.sft.batch, found.run.name) == (0.3, 3, "a-b")
        assert found.trainer == {"learning_rate": 6e-4, "lr": 1e-5, "on_cpu": True}


SECRET = [
    "--trainer.hub_token",
    "s3cret",
    "--trainer.url",
    "http://bob:s3cret@host/v1",
    "--trainer.push",
    "true",
]


def test_passwords_and_keys_are_hidden_in_what_is_kept_and_known_to_the_run(tmp_path, capsys):
    found = parse(GROUPS, SECRET)
    assert (found.trainer["hub_token"], found.trainer["url"]) == (
        "s3cret",
        "http://bob:s3cret@host/v1",
    )
    kept = found.save(tmp_path / "config.yaml").read_text()
    with pytest.raises(SystemExit):
        parse(GROUPS, [*SECRET, "--print_config"])
    for shown in (kept, capsys.readouterr().out, str(found.to_dict())):
        assert "s3cret" not in shown and "http://***@host/v1" in shown
    again = parse(GROUPS, ["--config", str(tmp_path / "config.yaml"), *found.secrets()])
    assert again.trainer == found.trainer
    assert hidden("http://ann:p@ss@host/v1 and a@b") == "http://***@host/v1 and a@b"
