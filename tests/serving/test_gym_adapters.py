"""Gyms as environments of Gymnasium and TRL, and environments of others as gyms."""

import math
import string
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

from humanlm.core.basics import DataError, run_sync
from humanlm.gyms.protocol import (
    Environment,
    Feedback,
    Gym,
    GymTask,
    ToolCall,
    UserError,
    find_gym,
    gym_names,
)
from humanlm.serving.adapters import (
    gymnasium_env,
    trl_environment,
    trl_rows,
)


@dataclass(frozen=True)
class WordTask(GymTask):
    "A word to be found"

    word: str

    @property
    def opening(self):
        return "Which word do I mean?"

    @property
    def secrets(self):
        return (self.word,)


class WordEnvironment(Environment):
    "Echoes what is said, and knows a word"

    formats = {"action": "anything", "answer": "the word"}

    async def on_action(self, content):
        if content == "fail":
            raise UserError("nobody there")
        return Feedback(
            f"You said: {content}" * (1 + 5_000 * (content == "much")), parts={"heard": 1.0}
        )

    async def on_answer(self, content):
        gain = self.improved(float(content.lower() == self.task.word))
        return Feedback("Yes!" if gain else "No.", gain, done=gain > 0)


word = Gym(
    "word",
    WordEnvironment,
    lambda count, seed: [WordTask(f"word-{seed}-{i}", f"w{seed}x{i}") for i in range(count)],
    lambda env: ToolCall("answer", env.task.word),
    "The user thinks of a word.",
)


# ---- Gymnasium


def checked(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not having a spec.*")
        check_env(env)


def test_every_gym_passes_the_checker_by_its_name():
    for name in gym_names():
        checked(gymnasium_env(find_gym(name)))


def test_every_text_is_an_action_and_every_observation_lies_in_its_space():
    env = gymnasium_env(word)
    env.reset(seed=0)
    for action in (
        "",
        "[action] much",
        "[action] \x00é漢" + "x" * 9_000,
        "[nothing] x",
        env.action_space.sample(),
    ):
        observation, reward, terminated, truncated, _info = env.step(action)
        assert (
            observation in env.observation_space
            and not terminated
            and not truncated
            and 0 <= reward <= 1
        )
    assert (
        "x" * 4001 not in env.action_space
        and 7 not in env.action_space
        and set(env.action_space.sample()) <= set(string.printable)
    )


def test_ends_are_told_apart_and_secrets_are_in_no_info():
    env = gymnasium_env(word)
    told = [env.reset(seed=5), env.step("[answer] no")]
    secret = env.play.task.word
    assert secret not in str(told)
    assert env.step(f"[answer] {secret}")[1:4] == (1.0, True, False)
    with pytest.raises(DataError, match="has ended"):
        env.step("[action] more")
    env.reset(seed=5)
    assert [env.step("[action] x")[2:4] for _ in range(16)][-2:] == [(False, False), (False, True)]
    env.reset(options={"task": "word-0-3"})
    _, reward, terminated, truncated, info = env.step("[action] fail")
    assert math.isnan(reward) and (terminated, truncated, info["stop"]) == (
        False,
        True,
        "user_error",
    )


# ---- TRL


def test_a_rollout_for_trl_hides_all_but_its_tool():
    tasks = word.tasks(2, 0)
    env = trl_environment(word, tasks)()
    public = {name for name in vars(type(env)) if not name.startswith("_")}
    assert public == {"reset", "get_reward", "interact_with_env"}
    rows = trl_rows(word, tasks)
    assert (
        [row["task_id"] for row in rows] == ["word-0-0", "word-0-1"]
        and not any(task.word in str(rows) for task in tasks)
        and "[action]" not in str(rows)
    )
    assert (
        env.reset(**rows[1]) == "Which word do I mean?"
        and run_sync(env.interact_with_env("Action", "[action] hi")) == "You said: hi"
        and env.get_reward() == 0
    )
    assert (
        run_sync(env.interact_with_env("jump", 7)).startswith("There is no 'jump'")
        and run_sync(env.interact_with_env("answer", "w0x1")) == "Yes!"
        and env.get_reward() == 1
    )
    assert run_sync(env.interact_with_env("answer", "w0x1")) == "The episode has ended."
    env.reset(**rows[0])
    assert env.get_reward() == 0
    run_sync(env.interact_with_env("action", "fail"))
    assert math.isnan(env.get_reward())


@pytest.mark.long
def test_trls_trainer_plays_a_gym_and_is_paid_by_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from humanlm.models.checkpoints import make_model
    from humanlm.models.config import ModelConfig

    model, tokenizer = make_model(
        ModelConfig(),
        [
            '<tool_call> {"name": "interact_with_env", "arguments": {"choice": '
            '"answer", "content": "42"}} </tool_call>'
        ],
    )
    tokenizer.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    ).read_text()
    tasks, read, form = (
        word.tasks(1, 0),
        [],
        '<tool_call>\n{"name": "interact_with_env", "arguments": {"choice": "%s", '
        '"content": "%s"}}\n</tool_call>',
    )

    class Scripted(trl.GRPOTrainer):
        "The real trainer; what the policy writes is given: of two rollouts, the first is right"

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            read.extend(prompts := tokenizer.batch_decode(prompt_ids))
            calls = [
                [("action", "hi"), ("answer", "w0x0" if place == 0 else "w9x9")]
                for place in range(len(prompts))
            ]
            turns = [prompt.count("<tool_response>") for prompt in prompts]
            texts = [form % own[turn] if turn < 2 else "Done." for own, turn in zip(calls, turns)]
            return [
                tokenizer.encode(text + tokenizer.eos_token, add_special_tokens=False)
                for text in texts
            ], None

    args = trl.GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=1000,
        max_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = Scripted(
        model,
        args=args,
        train_dataset=datasets.Dataset.from_list(trl_rows(word, tasks)),
        processing_class=tokenizer,
        environment_factory=trl_environment(word, tasks),
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert (
        log["rewards/GymTool/mean"] == 0.5
        and log["tools/failure_frequency"] == 0
        and log["tools/call_frequency"] == 2
        and log["grad_norm"] > 0
    )
    assert (
        "Which word do I mean?" in read[0]
        and "one of: action, answer" in read[0]
        and "You said: hi" in read[-1]
        and "No." in read[-1]
    )
