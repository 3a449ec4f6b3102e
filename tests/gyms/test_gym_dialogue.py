"Gyms in training: rewards, ends and failures of an episode become those of the trajectory."

import math

import pytest
import torch

from humanlm.core.basics import run_sync
from humanlm.gyms.protocol import (
    Environment,
    Feedback,
    GymConfig,
    GymTask,
    UserError,
    UserRole,
)
from humanlm.models.checkpoints import make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import Completion
from humanlm.models.prompts import end_id
from humanlm.training.dialogues import Heard, multi_turn, turn_advantage
from humanlm.training.method import Batch
from humanlm.training.policies import ModelPolicy


@pytest.fixture(scope="module")
def made():
    torch.set_num_threads(1)
    return make_model(
        ModelConfig(vocab=360, hidden=32, heads=2, kv_heads=2, mlp=48, template="chatml"),
        ["[action] 1 2 3 4", "[search] test", "[answer] 5"] * 9,
    )


class Scripted(ModelPolicy):
    "Writes what a player of the gym would do"

    def __init__(self, made, envs, player):
        super().__init__(*made)
        self.envs, self.player = envs, player

    def write(self, rows, sampling=None, prefixes=None):
        texts = [str(self.player(self.envs[row["row_id"]])) for row in rows]
        ids = [[*self.tokenizer.encode(text), end_id(self.tokenizer)] for text in texts]
        return [Completion(i, text, "eos", (), [-1.0] * len(i)) for i, text in zip(ids, texts)]


def played(made, envs, player, turns=20):
    "Lead a dialogue with every environment"

    async def answer(talk):
        env = envs[talk.row["row_id"]]
        turn = await env.step(talk.said[-1])
        return Heard([{"role": "user", "content": turn.feedback}], turn.reward, env.stop)

    rows = [
        {
            "row_id": name,
            "level": "gym",
            "prompt": [{"role": "user", "content": env.task.opening}],
            "speaker": "",
            "thinking": None,
            "stop": (),
            "max_tokens": 4000,
            "turn_tokens": 60,
        }
        for name, env in envs.items()
    ]
    return run_sync(multi_turn(answer, turns)(rows, Scripted(made, envs, player)))


class Oracle(Environment):
    "Pays for asking"

    roles = {"speaker": UserRole("Say something.", {"properties": {"text": {"type": "string"}}})}

    def rule_speaker(self):
        return {"text": "well"}

    async def on_action(self, content):
        return Feedback((await self.ask("speaker"))["text"], 0.5)


class AskOracle(GymTask):
    opening = "Ask."


def test_a_user_who_fails_leaves_no_reward_and_no_push(made):
    async def failing(env, role, payload):
        if len(env.turns) == 1:
            raise UserError("no usable answer")
        return {"text": "well"}

    envs = {
        name: Oracle(AskOracle(name), GymConfig(max_turns=3), user)
        for name, user in (("a", None), ("b", failing), ("c", None))
    }
    found = played(made, envs, lambda env: "[action] hello" if env.task.id != "c" else "nothing")
    assert [t.parse_status for t in found] == ["turn_limit", "user_error", "turn_limit"]
    assert math.isnan(envs["b"].score) and math.isnan(envs["b"].turns[-1].reward), (
        "the record of the gym says so too"
    )
    T = max(len(t.mask) for t in found)
    pushes = turn_advantage()(
        Batch(
            None,
            torch.zeros(3),
            torch.tensor([t.mask + [False] * (T - len(t.mask)) for t in found]),
            found,
        )
    )
    assert (pushes[1] == 0).all() and pushes[0].max() > 0 > pushes[2].min()
