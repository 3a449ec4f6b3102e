"Every way of training on a real tiny model: what is asked and rewarded, and asked afterwards."

from pathlib import Path

import numpy as np
import pytest
import yaml

import humanlm.train
from experiments import prefixes  # noqa: F401  adds the mode prefix-chaining
from humanlm.alignment.contract import how_to_ask, load_policy
from humanlm.alignment.modes import (
    MODES,
    settings_of,
    training_rows,
)
from humanlm.alignment.simulator import Simulator
from humanlm.core.basics import ConfigError, read_jsonl
from humanlm.core.config import Settings
from humanlm.core.records import sample_examples
from humanlm.evaluation.index import load_trajectories
from humanlm.hierarchy.composed import in_order, written
from humanlm.hierarchy.parsing import parse
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.checkpoints import load_model
from humanlm.training.run import check_settings, max_steps, read_settings, updates
from humanlm.training.sampling import RolloutConfig

EXAMPLES = sample_examples()[:4]
NAMES = ("stance", "goal", "response")
STEPS, STATE, REPLY, THOUGHT = 5, 14, 50, 60
TINY = {
    "run": {"methods": list(MODES)},
    "data": {"max_train": 40, "max_test": 2},
    "world": {"users": 24, "replies_per_user": 8},
    "model": {"vocab": 1100, "hidden": 48, "heads": 4, "kv_heads": 4, "head_dim": 12, "mlp": 128},
    "hierarchy": {
        "path": str(Path(__file__).with_name("low.json")),
        "levels": list(NAMES),
        "state_tokens": STATE,
        "response_tokens": REPLY,
        "thought_tokens": THOUGHT,
    },
    "sft": {"lesson_steps": 110, "polite_steps": 8, "reply_steps": 2, "batch": 8, "adam_lr": 0.015},
    "rollout": {"num_prompts": 2, "group_size": 4, "temperature": 0.2},
    "judge": {"model": "rule"},
    "trainer": {"max_steps": STEPS, "save_steps": 4, "learning_rate": 0.002},
}
SCORED = [name for name, mode in MODES.items() if not mode.supervised]
THINKING = {name: name.endswith(("-think", "-hetero", "-composed")) for name in MODES}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "All modes, a few steps each, one cold start"
    folder = tmp_path_factory.mktemp("modes")
    config = folder / "tiny.yaml"
    config.write_text(
        yaml.safe_dump(TINY | {"run": TINY["run"] | {"name": "tiny", "out": str(folder)}}), "utf-8"
    )
    assert humanlm.train.main(["--config", str(config)]) == 0
    return folder / "tiny"


@pytest.fixture(scope="module")
def tokenizer(run):
    return load_model(run / "models" / "base").tokenizer


def settings():
    return Settings({"hierarchy": HierarchyConfig(), "rollout": RolloutConfig()})


def said_by(run, name):
    return load_trajectories(run / "trajectories" / name)


def prompt_of(t, tokenizer):
    return tokenizer.decode(t.prompt_ids)


def squeezed(text):
    return "".join(text.split())


# ---- the table


@pytest.mark.parametrize("name", MODES)
def test_a_thought_comes_before_replies_only_and_only_where_the_mode_thinks(name):
    found = settings_of(settings(), name).hierarchy
    assert (found.thinks("response"), found.thinks("stance")) == (THINKING[name], False)
    for row in training_rows(EXAMPLES, found, name):
        assert row["thinking"] == (THINKING[name] and row["level"] == "response")


# ---- real rollouts

ASKED = {"reply": ("response",), "all": ("response",), "each": NAMES, "up to": NAMES}


@pytest.mark.long
@pytest.mark.parametrize("name", SCORED)
def test_what_is_asked_and_rewarded_in_a_few_steps(run, name):
    said, mode = said_by(run, name), MODES[name]
    assert len(said) == STEPS * 8 and {t.step for t in said} == set(range(STEPS))
    levels = {t.level for t in said}
    assert levels == set(ASKED[mode.asks]) or (mode.memory and {"stance", "goal"} <= levels)
    for t in said:
        assert list(t.scores) == (list(NAMES) if mode.rewarded == "all" else [t.level])
        rewarded = [s.value for s in t.scores.values() if s.status != "unsaid"]
        assert t.rewards["alignment"] == pytest.approx(np.mean(rewarded), nan_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("name", SCORED)
def test_what_the_prompts_ask_for(run, tokenizer, name):
    mode = MODES[name]
    for t in said_by(run, name)[::7]:
        system, _, tail = prompt_of(t, tokenizer).partition("<|im_end|>")
        tail = tail.rpartition("<|im_start|>")[2]
        tags = [level for level in NAMES if f"<{level}>" in system]
        assert tags == (list(NAMES) if mode.together else [t.level])
        if mode.memory and t.level != NAMES[0]:
            before = NAMES[NAMES.index(t.level) - 1]
            assert "</think>\n\n<stance>" in tail and tail.endswith(f"</{before}>")
        elif mode.composed and t.level == "response":
            assert tail.endswith("</think>") and squeezed(tail).endswith(
                f"<think>{squeezed(t.turns[0].text)}</think>"
            )
        else:
            assert tail.endswith(
                "<think>" if THINKING[name] and t.level == "response" else "<think>\n\n</think>\n\n"
            )


# ---- composed replies


@pytest.mark.long
def test_composed_replies_come_after_states_that_the_model_wrote_in_that_step(run):
    said = said_by(run, "humanlm-composed")
    steps = {t.step: [u for u in said if u.step == t.step] for t in said if t.level == "response"}
    assert steps and all({t.level for t in now} == {"response"} for now in steps.values())
    for now in steps.values():
        thoughts = {t.example_id: t.turns[0] for t in now}
        assert len(thoughts) == 2 and {t.turns[0] for t in now} == set(thoughts.values()), (
            "a group shares one thought"
        )
        assert all(turn.role == "thought" and turn.span == (0, 0) for turn in thoughts.values()), (
            "given, not rewarded"
        )
        assert [bool(t.usage and t.usage["tokens_out"]) for t in now].count(True) == 1, (
            "the tokens of the states count once"
        )
    logged = [
        line
        for line in read_jsonl(run / "metrics.jsonl")
        if line["stage"] == "humanlm-composed" and "loss" in line
    ]
    assert {line["step"] - 1 for line in logged if line.get("tokens/others")} == set(steps)


@pytest.mark.long
def test_a_composed_model_is_asked_after_its_own_answers_wherever_it_is_asked(run):
    place = run / "models" / "humanlm-composed"
    assert load_policy(place).compose and not load_policy(run / "models" / "humanlm-hetero").compose
    for row in read_jsonl(run / "evaluations" / "humanlm-composed.jsonl"):
        assert row["thought"] == written(
            in_order({level: row["texts"][level] for level in NAMES[:-1]})
        )
    said = Simulator(place, EXAMPLES[0].persona).reply(EXAMPLES[0].context)
    assert said.thought == written(in_order(said.states))
    alone = load_policy(place, changes={"rollout": {"compose": False}})
    plain = Simulator(alone, EXAMPLES[0].persona).reply(EXAMPLES[0].context)
    assert plain.states == said.states and plain.thought != said.thought
    with pytest.raises(ConfigError, match="--hierarchy.thinking hetero"):
        unable = how_to_ask(run / "models" / "response-only")
        Simulator(unable._replace(compose=True), EXAMPLES[0].persona)


# ---- prefix chaining


@pytest.mark.long
def test_prefixes_in_prompts_are_texts_that_scored_well_before(run, tokenizer):
    "Every prefix stands on an earlier trajectory of the example at or above the threshold"
    said, good, used = said_by(run, "prefix-chaining"), {}, 0
    for step in range(STEPS):
        now = [t for t in said if t.step == step]
        for t in now:
            tail = prompt_of(t, tokenizer).rpartition("</think>\n\n")[2]
            before = NAMES[: NAMES.index(t.level)]
            found = parse(tail, before).fields if before else {}
            assert bool(tail) == bool(before) and list(found) == list(before)
            if before:
                earlier = good[before[-1], t.example_id]
                best = {(reward, step, text.strip()) for reward, text, step in earlier}
                top = max(
                    (reward, step) for reward, step, _ in best
                )  # the best ever, the newest among equals
                assert (*top, found[before[-1]].strip()) in best
                used += 1
        for t in now:
            value = t.scores[t.level].value
            if t.fields.get(t.level, "").strip() and value >= 0.1:
                good.setdefault((t.level, t.example_id), []).append(
                    (value, t.fields[t.level], t.step)
                )
    assert used > 0, "no level beyond the first was ever asked: nothing was tested"


# ---- afterwards


# ---- the paper's table of configurations

ROOT = Path(__file__).resolve().parents[2]
PAPER = sorted(p for p in (ROOT / "configs" / "paper").glob("*.yaml") if p.stem != "shared")
# (what a prompt asks for, thinking, levels) as in the table of configurations of the released code
TABLE = {
    "response-only": ("reply", "off", 1),
    "response-only-think": ("reply", "hetero", 1),
    "response-only-wildchat": ("reply", "off", 1),
    "response-only-think-wildchat": ("reply", "hetero", 1),
    "prefix-chaining": ("up to", "off", 7),
    "humanlm": ("each", "off", 7),
    "humanlm-hetero": ("each", "hetero", 7),
    "humanlm-wildchat": ("each", "off", 7),
    "humanlm-hetero-wildchat": ("each", "hetero", 7),
    "separate-rewards": ("up to", "off", 3),
}


def test_every_row_of_the_table_has_a_file():
    assert {p.stem for p in PAPER} == {*TABLE, "eval-only"}


@pytest.mark.parametrize("path", [p for p in PAPER if p.stem in TABLE], ids=lambda p: p.stem)
def test_a_file_of_the_paper_is_what_its_row_says(path):
    recipe, s = read_settings(["--config", str(path)])
    check_settings(recipe, s)
    (name,) = s.run.methods
    hierarchy = settings_of(s, name).hierarchy
    assert (MODES[name].asks, hierarchy.thinking, len(hierarchy.load())) == TABLE[path.stem]
    assert (
        s.rollout.num_prompts,
        s.rollout.group_size,
        s.rollout.temperature,
        s.rollout.eval_temperature,
    ) == (32, 4, 0.8, 0.4)
    assert (
        s.judge.model != s.test_judge.model
        and s.trainer["beta"] == 0.001
        and s.trainer["learning_rate"] == 1e-6
    )
    assert (
        s.trainer["epsilon"],
        s.trainer["delta"],
        s.trainer["max_grad_norm"],
        s.trainer["loss_type"],
    ) == (0.2, 3.0, 1.0, "dapo")
    assert updates(s) == 8 and max_steps(s, rows=320) == 80
    rows = training_rows(EXAMPLES, hierarchy, name)
    reply = next(row for row in rows if row["level"] == "response")
    assert reply["stop"][0] == "</response>" and reply["max_tokens"] >= 512 * (
        1 + hierarchy.thinks("response")
    )


# ---- personas that lose parts in training only


# ---- several processes
