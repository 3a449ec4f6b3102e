"A step of training: worked advantages, classmates beside the judge, a lagged classmate resumed."

import copy
import math

import pytest

from humanlm.classmate.classmates import AnswerRewardConfig, Classmate, ClassmateConfig
from humanlm.classmate.method import (
    AnswerScorer,
    ResponseReader,
    _classmate_advantage,
    classmate_method,
)
from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import run_sync
from humanlm.core.trajectory import Trajectory
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.training.method import Method, ask_row
from humanlm.training.policies import ScriptedPolicy
from humanlm.training.sampling import group_index, repeat_rows
from humanlm.training.trainer import MethodTrainer, trainer_args

LENGTHS, MAIN, MATES = [6, 5, 4, 6, 3, 6, 6, 5], [8, 4, 6, 6, 2, 2, 5, 3], [7, 3, 3, 7, 1, 4, 4, 3]
TEXTS = [
    "<think>two and two is 4</think>4",
    "<think>so 3</think>4",
    "<think></think>4",
    "<think>one",
]


@pytest.fixture(scope="module")
def made():
    return make_model(
        ModelConfig(template="chatml", hidden=32, heads=2, kv_heads=2, mlp=64, vocab=420),
        ["2 + 2? What is it?", *TEXTS],
        ["<think>", "</think>"],
    )


class Noted:
    names, weights = ("answer", "classmate"), (1.0, 1.0)

    async def __call__(self, trajectories):
        return [[t.rewards[name] for name in self.names] for t in trajectories]


async def scored(rows, policy):
    "Eight responses of given lengths, of which tokens 1 and 2 were shown"
    done = [
        Trajectory(
            f"{r['row_id']}/{i}",
            r["row_id"],
            g,
            0,
            r["level"],
            (),
            policy.prompt_ids(r),
            [5 + j for j in range(n)],
            [True] * n,
            rewards={"answer": m, "classmate": c},
            signals={"shown": [float(0 < j < 3) for j in range(n)]},
        )
        for i, (r, g, n, m, c) in enumerate(
            zip(rows, group_index(rows), LENGTHS, MAIN, MATES, strict=True)
        )
    ]
    return done, [[m, c] for m, c in zip(MAIN, MATES)]


@pytest.mark.parametrize(
    "settings, first, third",
    [
        (
            {"estimator": "gdpo_partial"},
            [1.2247, 1.2610, 1.2610, 1.2247, 1.2247, 1.2247],
            [0, -0.5223, -0.5223, 0],
        ),
        (
            {"estimator": "grpo_w_classmate"},
            [1.2247, 1.0954, 1.0954, 1.2247, 1.2247, 1.2247],
            [0, -0.5477, -0.5477, 0],
        ),
        ({"estimator": "drgrpo"}, [4] * 6, [-2] * 4),
    ],
)
def test_the_worked_numbers_come_out_of_the_trainer(made, tmp_path, settings, first, third):
    model, tokenizer = made
    config = ClassmateConfig(**settings)
    method = Method(
        scored, _classmate_advantage(config, ResponseReader(config, tokenizer)), Noted()
    )
    rows = [ask_row("2 + 2?", name, 9) | {"speaker": ""} for name in "ab"]
    args = trainer_args(
        {"save_strategy": "no", "loss_type": "dr_grpo"}, tmp_path, 2, 4, 1, 9, seed=3
    )
    trainer = MethodTrainer(copy.deepcopy(model), tokenizer, method, rows, args)
    trainer.train()
    assert trainer.trajectories[0].advantage == pytest.approx(
        first, abs=1e-4
    ) and trainer.trajectories[2].advantage == pytest.approx(third, abs=1e-4)


def rows_of(count=2):
    return repeat_rows(
        [
            ask_row("2 + 2?", f"q{i}", 40) | {"verifier": "gsm8k", "ground_truth": "4"}
            for i in range(count)
        ],
        4,
    )


class Script(ScriptedPolicy):
    def __init__(self, tokenizer):
        self.tokenizer, self.script = tokenizer, lambda row, copy: TEXTS[copy]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids):
        return self.tokenizer.decode(ids)

    def _completion(self, row, text):
        made = super()._completion(row, text)
        return made._replace(ids=made.ids[:-1]) if hasattr(made, "_replace") else made


def last_word(request):
    return request.prefill.removesuffix("</think>").split()[-1]


def test_a_step_scores_answers_and_reasoning(made):
    method = classmate_method(
        ClassmateConfig(), [Classmate(ScriptedClient(last_word, "scripted/last"))], made.tokenizer
    )
    done, values = run_sync(method.rollout(rows_of(), Script(made.tokenizer)))
    assert [t.parse_status for t in done[:4]] == ["whole", "whole", "empty", "unfinished"]
    assert str(values[:4]) == "[[1.0, 1.0], [1.0, 0.0], [1.0, nan], [0.0, nan]]"
    assert [sum(t.signals["shown"]) > 0 for t in done[:4]] == [
        True,
        True,
        False,
        True,
    ] and "skipped" not in done[0].turns[1].text


def test_what_is_earned_without_reasoning_is_asked_once_for_each_prompt_and_taken_off(made):
    client = ScriptedClient(
        lambda request: "4" if not request.prefill else last_word(request), "scripted/knows"
    )
    method = classmate_method(
        ClassmateConfig(reward_type="remove_wo_cot"), [Classmate(client)], made.tokenizer
    )
    for _ in range(2):
        _, values = run_sync(method.rollout(rows_of(), Script(made.tokenizer)))
    assert (
        str(values[:2]) == "[[1.0, 0.0], [1.0, -1.0]]"
        and sum(not r.prefill for r in client.requests) == 2
    )


def test_shuffled_classmates_read_about_another_question(made):
    client = ScriptedClient(last_word, "scripted/last")
    method = classmate_method(
        ClassmateConfig(reward_type="shuffled"), [Classmate(client)], made.tokenizer
    )
    done, _ = run_sync(method.rollout(rows_of(), Script(made.tokenizer)))
    assert len(done) == 8 and len(client.requests) == 4


# ---- what answers are paid for


def rated(*values):
    given = iter(values)
    return ScriptedClient(lambda request: f"RATING: {next(given)}", "scripted/judge")


def scored_by(config, **judges):
    return run_sync(AnswerScorer(config, judges)(rows_of(1)[:2], ["**4**", "**4** and **5**"]))


def test_a_behaviour_is_paid_on_top_of_what_an_answer_is_worth():
    assert scored_by(AnswerRewardConfig(exploit="bold_formatting", gold_weight=0.5)) == [
        1.5,
        2.0,
    ], "the second answer ends with 5"
    assert scored_by(
        AnswerRewardConfig("scripted/judge", exploit="sycophancy", gold_weight=2.0, gold_most=0.5),
        judge=rated(8, 3),
    ) == [9.0, 3.0]


def test_what_a_weaker_judge_sees_is_taken_off_and_where_it_fails_nothing_is_known():
    config = AnswerRewardConfig(
        "scripted/judge", exploit="sycophancy", weak="scripted/weak", gold_weight=0.0
    )
    found = scored_by(config, judge=rated(10, 10), weak=rated(1, "none"))
    assert found[0] == 10.0 and math.isnan(found[1])
