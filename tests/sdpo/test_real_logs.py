"Real logs and prompts: prepared with counts, scored in both contexts, learned from."

import json
import math
import os
import re
from copy import deepcopy
from pathlib import Path

import pytest

from humanlm.core.basics import read_jsonl, write_jsonl
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.sdpo.hindsight import (
    AssistantReply,
    Followup,
    Interaction,
    SDPOConfig,
    problem,
    read_interactions,
)
from humanlm.sdpo.method import logged_row, offline, sdpo_method
from humanlm.sdpo.preparation import prepare_command
from humanlm.training.trainer import MethodTrainer, trainer_args

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
pytestmark = pytest.mark.skipif(
    not (DATA / "mt_bench").is_dir(),
    reason="set HUMANLM_DATA to a folder with mt_bench, hh_rlhf_mild and tau_bench",
)
SHAPE = ModelConfig(
    vocab=512, hidden=32, layers=2, heads=2, kv_heads=2, head_dim=16, mlp=64, template="chatml"
)
FILES = {
    "hh_rlhf_mild": ("examples", r"(?:^|\n\n)(Human|Assistant):"),
    "tau_bench": ("few_shot_dialogues", r"(?m)^(user|assistant|tool|system):(?= |$)"),
}


def dialogue(row, mark):
    "The messages of a text with marked turns; what is written for a call of a tool is none"
    text = next(v for v in (row.get("chosen"), row.get("messages_display")) if v)
    _, *parts = re.split(mark, text)
    texts = [said.strip().removesuffix("###STOP###").rstrip() for said in parts[1::2]]
    roles = [role.lower().replace("human", "user") for role in parts[::2]]
    return [
        {"role": role, "content": "" if (role, said) == ("assistant", "None") else said}
        for role, said in zip(roles, texts)
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    "What preparation makes of each set: folder, counts"
    room = tmp_path_factory.mktemp("prepared")
    made = {}
    for name, (file, mark) in FILES.items():
        rows = read_jsonl(DATA / name / f"{file}.jsonl")
        file = write_jsonl(room / f"{name}.jsonl", [{"messages": dialogue(r, mark)} for r in rows])
        line = ["--prepare.train", str(file), "--prepare.out", str(room / name)]
        assert prepare_command(["dialogues", *line]) == 0
        facts = json.loads((room / name / "prepare.json").read_text())
        made[name] = room / name, facts["parts"]["train"]["counts"]
    return made


@pytest.fixture(scope="module")
def logs(prepared):
    "Interactions of the real dialogues, and of the questions with a reply in between"
    questions = read_jsonl(DATA / "mt_bench" / "questions.jsonl")
    made = [
        Interaction(
            str(i),
            ({"role": "user", "content": row["turns"][0]},),
            AssistantReply("Here is a first answer.", model="made up"),
            Followup(row["turns"][1]),
        )
        for i, row in enumerate(questions)
    ]
    return {"mt_bench": made} | {
        name: read_interactions(prepared[name][0] / "train.jsonl")
        for name in ("hh_rlhf_mild", "tau_bench")
    }


@pytest.fixture(scope="module")
def tiny(logs):
    texts = [
        text
        for some in logs.values()
        for i in some
        for text in (i.messages[-1]["content"], i.completion.text, i.followup.text)
    ]
    return make_model(SHAPE, texts)


def test_counts_of_the_real_files(prepared):
    assert {name: counts for name, (_, counts) in prepared.items()} == {
        "hh_rlhf_mild": {"rows read": 5, "replies found": 16, "reply: no follow-up": 5, "kept": 11},
        "tau_bench": {
            "rows read": 47,
            "replies found": 643,
            "reply: no user message": 171,
            "reply: no follow-up": 324,
            "reply: empty follow-up": 5,
            "kept": 143,
        },
    }


def test_training_offline_on_real_logs(logs, tiny, tmp_path):
    model, tok = deepcopy(tiny.model), tiny.tokenizer
    some = [
        i
        for name in logs
        for i in logs[name]
        if not problem(i.messages, i.completion.text, i.followup.text, tok, 256)
    ]
    rows = [logged_row(i, tok, 256, 32) for i in some[:: len(some) // 8][:8]]
    args = trainer_args(
        dict(
            optim="sgd",
            learning_rate=5.0,
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            warmup_steps=0,
            save_strategy="no",
            logging_steps=1,
        ),
        tmp_path,
        8,
        1,
        6,
        32,
        3,
    )
    trainer = MethodTrainer(
        model,
        tok,
        sdpo_method(SDPOConfig("topk"), offline(), model, tok, 256),
        rows,
        args,
        None,
        [],
        256,
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert (
        len(losses) == 6
        and all(map(math.isfinite, losses))
        and len({i.conversation_id for i in some}) > 40
    )
    # the same eight replies in each step come nearer to the teacher
    assert losses == sorted(losses, reverse=True)
