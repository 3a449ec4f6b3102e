"The one grammar of all commands, from outside and for any input."

import importlib
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from humanlm.clients.names import client
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import ConfigError
from humanlm.core.config import RunConfig, SFTConfig, hidden
from humanlm.core.grammar import OptionDefaults, _known_settings, parse
from humanlm.core.runs import require_same
from humanlm.core.web import service_key
from humanlm.data.dataset import DataConfig

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
KNOWN = _known_settings(GROUPS)
SCRIPT = """
import sys
from humanlm.core.commands import command
from humanlm.core.config import RunConfig, SFTConfig
from humanlm.core.grammar import parse
from humanlm.data.dataset import DataConfig
@command("demo")
def main(argv):
    print(parse({"run": RunConfig, "data": DataConfig, "sft": SFTConfig, "trainer": {}}, argv, "A demo."))
code = main()
heavy = [m for m in ("torch", "numpy", "pandas", "datasets", "transformers", "trl") if m in sys.modules]
sys.exit(f"imported {heavy}" if heavy else code)
"""


def demo(*argv):
    return subprocess.run([sys.executable, "-c", SCRIPT, *argv], capture_output=True, text=True)


@pytest.mark.parametrize(
    "argv, code, part",
    [
        (["--help"], 0, "Steps of lessons"),
        (["--version"], 0, "humanlm "),
        (["--print_config", "--sft.noise", "0.25"], 0, "noise: 0.25"),
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
            ["--run.sed", "1", "--sft.noise", "x"],
            ["2 problems", "--run.seed?", "--sft.noise must be float"],
        ),
        (["--config", "nowhere.yaml"], ["Cannot read nowhere.yaml"]),
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
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abc1e-.: {", max_size=8)
)


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
        noise=st.floats(0, 1),
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


@given(names.filter(lambda n: n not in GROUPS), names)
def test_unknown_names_are_errors_everywhere(tmp_path, group, name):
    (tmp_path / "x.yaml").write_text(f"{group}: {{{name}: 1}}\n")
    for argv in (
        ["--config", str(tmp_path / "x.yaml")],
        [f"--{group}.{name}", "1"],
        [f"--{group}.{name}=1"],
    ):
        with pytest.raises(ConfigError, match="does not exist"):
            parse(GROUPS, argv)


@given(st.sampled_from(sorted(KNOWN)), scalars)
def test_any_value_in_a_file_gives_settings_or_a_config_error(tmp_path, key, value):
    import yaml

    group, _, name = key.partition(".")
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({group: {name: value} if name else value}))
    try:
        parse(GROUPS, ["--config", str(tmp_path / "x.yaml")])
    except ConfigError as e:
        assert group in str(e)


@given(
    st.lists(
        st.sampled_from([f"--{k}" for k in sorted(KNOWN)] + ["--resume", "--dry-run", "--fresh"])
        | st.text("ab1-=.[]{}:", max_size=6),
        max_size=5,
    )
)
def test_any_line_gives_settings_or_a_config_error(argv):
    try:
        assert parse(GROUPS, argv, inputs="files").run.name
    except ConfigError as e:
        assert e.problems
    except SystemExit as e:
        assert e.code in (0, None)


def test_flags_win_wherever_the_file_stands(tmp_path):
    (tmp_path / "a.yaml").write_text("sft: {noise: 0.1}\ntrainer: {lr: 1e-5, on_cpu: true}\n")
    (tmp_path / "b.yaml").write_text("sft: {noise: 0.2, warmup: 3}\n")
    files = [f"--config={tmp_path / name}" for name in ("a.yaml", "b.yaml")]
    for argv in (
        [*files, "--sft.noise", "0.3"],
        ["--sft.noise", "0.3", *files],
        [files[0], "--sft.noise=0.3", files[1]],
    ):
        found = parse(GROUPS, argv)
        assert (found.sft.noise, found.sft.warmup, found.run.name) == (0.3, 3, "a-b")
        assert found.trainer == {"learning_rate": 6e-4, "lr": 1e-5, "on_cpu": True}


@pytest.mark.parametrize(
    "flag, value, said",
    [
        ("--sft.noise", "x", "--sft.noise must be float, got 'x'."),
        ("--run.sed", "1", "--run.sed does not exist. Did you mean --run.seed?"),
    ],
)
@pytest.mark.parametrize("given", [[], ["a.jsonl", "b.jsonl"]])
def test_inputs_do_not_make_other_settings_wrong(tmp_path, flag, value, said, given):
    (tmp_path / "x.yaml").write_text(
        "run: {seed: 3, methods: [sft]}\ndata: {source: miniworld}\nsft: {adam_lr: 5e-3}\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse(
            GROUPS,
            [*given, "--config", str(tmp_path / "x.yaml"), flag, value],
            inputs="reply files",
        )
    [problem] = caught.value.problems
    assert problem.startswith(said)


def test_a_bare_name_is_looked_for_among_the_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for name in ("mkdocs.yml", "configs/mini.yaml"):
        (tmp_path / name).write_text("run: {}\n")
    with pytest.raises(ConfigError, match="Did you mean 'configs/mini.yaml'?") as caught:
        parse(GROUPS, ["--config", "mini.yaml"])
    assert "mkdocs" not in str(caught.value)


def test_settings_files_of_the_package_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("humanlm-mini", "humanlm-mini.yaml", "configs/humanlm-mini.yaml"):
        with pytest.raises(ConfigError, match="humanlm-mini.yaml: "):
            parse({"run": RunConfig}, ["--config", name])  # it has groups that are unknown here
    with pytest.raises(ConfigError, match="Did you mean 'humanlm-mini'?"):
        parse({"run": RunConfig}, ["--config", "humanlm-minni"])
    (tmp_path / "humanlm-mini").write_text("run: {seed: 7}\n")
    assert parse({"run": RunConfig}, ["--config", "humanlm-mini"]).run.seed == 7, (
        "one's own goes before"
    )


@pytest.mark.parametrize("command", ["serve", "talk", "hub push", "judges audit"])
def test_commands_without_a_run_have_no_switches_for_one(command, capsys):
    module, *words = command.split()
    main = importlib.import_module(f"humanlm.{module}").main
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--dry-run" in shown and "--resume" not in shown and "--fresh" not in shown
    assert main([*words, "--fresh"]) == 2
    assert "keeps no run, so there is nothing to resume" in capsys.readouterr().err


def test_help_says_what_may_be_passed_on(capsys):
    groups = {
        "rows": OptionDefaults("what a reader is told: --rows.split all or published", split="all")
    }
    with pytest.raises(SystemExit):
        parse(groups, ["--help"])
    assert "--rows.split all or published" in " ".join(capsys.readouterr().out.split())
    assert parse(groups, []).rows == {"split": "all"} and parse(
        groups, ["--rows.split=published"]
    ).rows == {"split": "published"}


def test_aliases_are_refused_before_they_grow(tmp_path):
    lines = [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)),
    ]
    path = tmp_path / "bomb.yaml"
    path.write_text("trainer:\n" + "\n".join(f"  {line}" for line in lines))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "--config", str(path), "--dry-run"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2 and "bomb.yaml: not valid YAML: line 3: an alias" in done.stderr


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
    assert (
        parse(GROUPS, ["--config", str(tmp_path / "config.yaml"), *found.secrets()]).trainer
        == found.trainer
    )
    assert hidden("http://ann:p@ss@host/v1 and a@b") == "http://***@host/v1 and a@b"


def test_a_run_with_a_hidden_password_is_resumed_and_another_host_is_another_run(tmp_path):
    found = parse(GROUPS, SECRET)
    found.save(tmp_path / "config.yaml")
    require_same(tmp_path, found)
    (tmp_path / "config.yaml").write_text(
        f"trainer: {found.trainer}\n".replace("True", "true") + "run: {}\ndata: {}\nsft: {}\n"
    )  # as older runs kept it
    with pytest.raises(ConfigError) as refused:
        require_same(tmp_path, found.changed(trainer={"url": "http://bob:s3cret@other/v1"}))
    assert "trainer.url: http://***@host/v1 in the run, http://***@other/v1 now" in str(
        refused.value
    ) and "s3cret" not in str(refused.value)


def test_what_stands_for_a_password_is_never_sent_or_taken_for_one():
    with pytest.raises(ConfigError, match="was not kept"):
        service_key("127.0.0.1", "serve.host", "SOME_KEY", "***")
    with pytest.raises(LLMError, match="was not kept"):
        client("vllm/m", base_url="http://***@host/v1")
    with pytest.raises(LLMError) as bad:
        client("vllm/m", base_url="http://bob:s3cret@host:0/v1")
    assert "s3cret" not in str(bad.value)
