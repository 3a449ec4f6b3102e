"Talking to a simulated person, in a widget, on a page and in a terminal."

import re

import pytest
import warm

from humanlm.alignment.contract import PolicySetup, contract
from humanlm.core.basics import ConfigError, atomic_write, write_jsonl
from humanlm.core.records import persona_text
from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.serving.talk import Talk, typed
from humanlm.talk import _converse, _TalkConfig, main
from humanlm.training.policies import ScriptedPolicy
from humanlm.training.sampling import RolloutConfig
from humanlm.worlds.mini import WorldConfig, make_world

WORLD = make_world(WorldConfig(users=36, replies_per_user=12))
EXAMPLES = [e for e in WORLD.examples if e.split == "test"][:3]
EXAMPLE = EXAMPLES[0]


def setup_of(texts, thinking="off", **more):
    script = {level: f"<{level}>{text}</{level}>" for level, text in texts.items()}
    if thinking != "off":
        script["response"] = f"a thought.</think>{script['response']}"
    return PolicySetup(ScriptedPolicy(script), HierarchyConfig(thinking=thinking, **more))


TRUTH = EXAMPLE.states | {"response": EXAMPLE.reply}


@pytest.fixture
def talk():
    return Talk(setup_of(TRUTH, "hetero"), EXAMPLES)


# ---- what was said


def test_levels_come_one_by_one(talk):
    seen = list(talk.follow(EXAMPLE))
    assert [list(t.answers)[-1] for t in seen] == list(LEVELS)
    told = seen[-1]
    assert (
        {level: told.text(level) for level in LEVELS} == TRUTH
        and told.thought("response") == "a thought."
        and told.thought("goal") == ""
    )


def test_a_conversation_goes_on_without_a_real_reply(talk):
    told = talk.ask(talk.ask(EXAMPLE).next("Are you sure?"))
    assert [(m.name, m.content) for m in told.example.context[-2:]] == [
        (EXAMPLE.user_id, EXAMPLE.reply),
        ("you", "Are you sure?"),
    ]
    assert told.example.states is None and "real reply" not in str(told)


def test_what_is_typed_is_read_as_it_is_shown():
    example = typed("x", "bo: one\ntwo\nHUMAN: three\nbo: http://x")
    assert [(m.name, m.content) for m in example.context] == [
        ("bo", "one\ntwo"),
        ("HUMAN", "three"),
        ("bo", "http://x"),
    ]
    assert "drums" in persona_text(typed(["i play the drums", "lol"], "a: b").persona)
    assert [m.content for m in typed("x", "no name here").context] == ["no name here"]


# ---- the terminal


def test_a_terminal_shows_no_control_characters(capsys):
    talk = Talk(setup_of(dict.fromkeys(LEVELS, "\x1b[31mred\x07")))
    _converse(
        talk, _TalkConfig(persona="x\x1b]0;title\x07", said="bo: \x1b[2Jhi"), lambda question: ""
    )
    assert "\x1b" not in (out := capsys.readouterr().out) and "\x07" not in out and "[31mred" in out


def test_people_are_listed_and_chosen_by_number(talk, capsys):
    answers = iter(["1", "Really?", ""])
    _converse(talk, _TalkConfig(), lambda question: next(answers))
    out = capsys.readouterr().out
    assert (
        f"2. {EXAMPLES[2].user_id} on:" in out
        and "real reply" in out
        and "Really?" in out
        and out.count("reply  ") >= 2
    )
    for answer in ("9", "x"):
        with pytest.raises(ConfigError, match="There is no row"):
            _converse(talk, _TalkConfig(), lambda question: answer)
    _converse(talk, _TalkConfig(), lambda question: "")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A run with a tiny random model, held-out rows and a judge"
    home, config = (
        tmp_path_factory.mktemp("talk") / "runs" / "mini",
        ModelConfig(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=500),
    )
    asked = HierarchyConfig(levels=["stance", "response"], state_tokens=6, response_tokens=12)
    save_model(
        *make_model(
            config,
            [e.reply for e in WORLD.examples[:50]],
            ["<stance>", "</stance>", "<response>", "</response>"],
        ),
        home / "models" / "humanlm",
        contract(config, asked, RolloutConfig(), "humanlm", "politics"),
    )
    atomic_write(
        home / "config.yaml",
        "run: {methods: [humanlm]}\ndata: {source: miniworld}\nworld: {users: 36, "
        "replies_per_user: 12}\n"
        "judge: {model: rule}\ntest_judge: {model: oracle}\n",
    )
    write_jsonl(home / "examples.jsonl", EXAMPLES)
    return home


def test_the_command_brings_rows_of_the_run(run, monkeypatch):
    done = warm.run(
        "-m", "humanlm.talk", "--model.name", "mini", stdin="0\nWhy?\n", cwd=run.parent.parent
    )
    assert done.returncode == 0, done.stderr
    assert (
        EXAMPLE.reply[:30] in done.stdout
        and "real reply" in done.stdout
        and done.stdout.count("stance  ") >= 2
    )


def test_the_plan_loads_nothing(run, capsys):
    assert main(["--model.name", str(run), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert (
        re.search(rf"^model +{re.escape(str(run))}/", said, re.M)
        and "rows        3 held out" in said
    )
    assert main(["--model.name", str(run), "--dry-run", "--hierarchy.prompt", "chat"]) == 0
    assert "asked       prompt chat, stance, response" in capsys.readouterr().out
