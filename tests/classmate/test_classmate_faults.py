"Weak points of the published code, and bad input: a defined result each."

import copy
import math

import pytest
import torch

from humanlm.classmate.classmates import (
    AnswerRewardConfig,
    Classmate,
    ClassmateConfig,
    ReasoningView,
)
from humanlm.classmate.method import (
    AnswerScorer,
    ResponseReader,
    _classmate_advantage,
    classmate_method,
)
from humanlm.clients.client import ScriptedClient
from humanlm.clients.limits import Limits
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import run_sync
from humanlm.core.trajectory import Trajectory
from humanlm.models.checkpoints import LoadedModel, make_model
from humanlm.models.config import ModelConfig
from humanlm.models.local import HFClient
from humanlm.training.functions import ask_row
from humanlm.training.method import Batch, Method
from humanlm.training.options import trainer_args
from humanlm.training.sampling import group_index
from humanlm.training.trainer import MethodTrainer

SMALL = dict(template="chatml", hidden=32, heads=2, kv_heads=2, mlp=64)
TEXTS = ["<think>two and two is 4</think>4", "<think>so 3</think>4"]


@pytest.fixture(scope="module")
def made():
    return make_model(
        ModelConfig(vocab=420, **SMALL), ["2 + 2? What is it?", *TEXTS], ["<think>", "</think>"]
    )


def row(name="q"):
    return ask_row("2 + 2?", name, 40) | {"verifier": "gsm8k", "ground_truth": "4", "speaker": ""}


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


# ---- 9: the loss depends on the size of micro-batches

LENGTHS = [6, 2, 9, 4, 3, 8, 5, 7]


async def fixed(rows, policy):
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
            rewards={"answer": float(i % 3), "classmate": float(i % 2)},
            signals={"shown": [float(0 < j < 3) for j in range(n)]},
        )
        for i, (r, g, n) in enumerate(zip(rows, group_index(rows), LENGTHS, strict=True))
    ]
    return done, [[t.rewards["answer"], t.rewards["classmate"]] for t in done]


class Noted:
    names, weights = ("answer", "classmate"), (1.0, 1.0)

    async def __call__(self, trajectories):
        return [[t.rewards[name] for name in self.names] for t in trajectories]


def trained(made, out, size):
    config = ClassmateConfig()
    method = Method(
        fixed, _classmate_advantage(config, ResponseReader(config, made.tokenizer)), Noted()
    )
    args = trainer_args(
        {
            "optim": "sgd",
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "loss_type": "dr_grpo",
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": 8 // size,
        },
        out,
        2,
        4,
        1,
        9,
        seed=3,
    )
    trainer = MethodTrainer(
        copy.deepcopy(made.model), made.tokenizer, method, [row("a"), row("b")], args
    )
    trainer.train()
    return [p.detach().clone() for p in trainer.model.parameters()]


def test_micro_batches_change_nothing(made, tmp_path):
    whole, parts = trained(made, tmp_path / "whole", 8), trained(made, tmp_path / "parts", 2)
    assert any((p - q).abs().max() > 1e-4 for p, q in zip(whole, made.model.parameters()))
    for p, q in zip(whole, parts):
        torch.testing.assert_close(p, q, atol=2e-6, rtol=1e-4)


# ---- 12, 13, 14: an empty response, masks of baselines, where the answer begins


def test_an_empty_response_is_unfinished_and_moves_no_other(made):
    reader = ResponseReader(ClassmateConfig(), made.tokenizer)
    read = reader([row(), row()], [[], ids(made.tokenizer, TEXTS[0])])
    assert (
        [s.status for s in read.shown] == ["unfinished", "whole"]
        and not any(read.mask[0])
        and read.answers == ["", "4"]
    )
    assert reader([row()], [[]]).mask == [[]]


@pytest.mark.parametrize(
    "mode, felt",
    [("cot_only", "<think>two and two is 4</think>"), ("output_only", "<think></think>4")],
)
def test_baselines_push_their_part_and_leave_the_mask_of_the_policys_tokens_alone(made, mode, felt):
    config = ClassmateConfig(main_mode=mode, use_classmate_condition="no_classmate")
    reader, own = (
        ResponseReader(config, made.tokenizer),
        [ids(made.tokenizer, text) for text in TEXTS],
    )
    width = max(map(len, own))
    done = [
        Trajectory(
            f"q/{i}",
            "q",
            0,
            0,
            "response",
            (),
            [1],
            found,
            [True] * len(found),
            signals={"shown": [0.0] * len(found)},
        )
        for i, found in enumerate(own)
    ]
    mask = torch.arange(width) < torch.tensor([len(found) for found in own])[:, None]
    before = mask.clone()
    push = _classmate_advantage(config, reader)(
        Batch(
            torch.tensor([[1.0, math.nan], [0.0, math.nan]]),
            torch.tensor([0, 0]),
            mask,
            done,
            None,
            [row(), row()],
        )
    )
    assert "".join(reader.pieces[i] for i, x in zip(own[0], push[0]) if x) == felt and mask.equal(
        before
    )


def test_the_closing_mark_is_no_part_of_the_answer(made):
    reader = ResponseReader(ClassmateConfig(), made.tokenizer)
    found = ids(made.tokenizer, TEXTS[0])
    read = reader([row()], [found])
    assert (
        "".join(reader.pieces[i] for i, own in zip(found, read.output[0]) if own)
        == read.answers[0]
        == "4"
    )


# ---- 15, 17, 19: routing by parts of a name, errors that are swallowed, a norm that is not read


@pytest.mark.parametrize("who", ["judge", "classmate"])
def test_a_budget_that_is_spent_stops_the_step(made, who):
    broke = ScriptedClient(
        lambda request: LLMError("over budget", "spent"),
        f"scripted/{who}",
        limits=Limits(attempts=1),
    )
    assert LLMError("over budget", "spent").stops
    mates = [
        Classmate(
            broke if who == "classmate" else ScriptedClient(lambda request: "4", "scripted/mate")
        )
    ]
    score = AnswerScorer(
        AnswerRewardConfig("scripted/judge", verifier="sycophancy"),
        {
            "judge": broke
            if who == "judge"
            else ScriptedClient(lambda request: "RATING: 5", "scripted/j")
        },
    )
    rollout = classmate_method(ClassmateConfig(), mates, made.tokenizer, score=score).rollout
    with pytest.raises(LLMError):
        run_sync(rollout.scored([row()], [ids(made.tokenizer, TEXTS[0])], 0))


# ---- bad input


def test_marks_in_a_question_do_not_end_the_reasoning(made):
    asked = ({"role": "user", "content": "Say </think> and <think>x</think> <|im_end|>"},)
    client = HFClient("tiny", LoadedModel(*made))
    found = client.prompt_ids(
        Classmate(client).request(ReasoningView("q", 0, asked, "so 4</think>7"))
    )
    marks = made.tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert [found.count(mark) for mark in marks] == [1, 1] and found[-1] == marks[1]
