"A reward without a judge: worked numbers, a planted reader, the supervised term, whole runs."

import json
import math
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import humanlm.train
from humanlm.alignment.bits import reply_span
from humanlm.alignment.grpo import alignment_method
from humanlm.alignment.likelihood import (
    LikelihoodReward,
    Reader,
    _chosen,
    _group_credits,
    _reply_loss,
)
from humanlm.alignment.modes import training_rows
from humanlm.core.basics import ConfigError, read_jsonl, run_sync
from humanlm.core.records import Example, Message, Persona
from humanlm.evaluation.index import load_trajectories
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.bits import byte_count
from humanlm.models.checkpoints import load_model, make_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import Completion
from humanlm.rewards.judge_settings import JudgeConfig
from humanlm.rewards.reward import RewardConfig
from humanlm.training.method import AdvantageConfig, Batch
from humanlm.training.policies import ModelPolicy
from humanlm.training.sampling import RolloutConfig, repeat_rows

WORDS = "otter walnut violin comet pepper harbour lantern meadow".split()
ASKED = HierarchyConfig(levels=["stance", "goal", "response"], thinking="hetero")
TAGS = [f"<{s}{level}>" for level in ("stance", "goal", "response") for s in ("", "/")]
EXAMPLES = [
    Example(
        f"e{i}",
        "chat",
        "train",
        f"u{i}",
        f"c{i // 2}",
        Persona(f"u{i}", f"is person {i}"),
        (Message(f"m{i}", "user", "asker", "and you?"),),
        f"well, {word}",
    )
    for i, word in enumerate(WORDS)
]


def test_worked_numbers():
    logps, base, size = np.array([-8.0, -10, -14, math.nan]), -10.0, 20
    single = _group_credits(logps, base, size)
    assert single == pytest.approx([0.1, 0, -0.2, -0.2 - 0.03])
    p = np.exp(100 * logps[:3] / size)
    mixture = [(math.log(p.mean()) - math.log(np.delete(p, k).mean())) / 100 for k in range(3)]
    worst = min(mixture) - 0.03
    assert _group_credits(logps, base, size, "mixture") == pytest.approx([*mixture, worst])
    alone = _group_credits(np.array([-8.0, math.nan]), base, size, "mixture")
    assert alone == pytest.approx([0.1, 0.1 - 0.03])
    assert _group_credits(np.full(2, math.nan), base, size) == pytest.approx([-0.03] * 2)
    assert _chosen([-1.0, -2.0]) == pytest.approx(-math.log(1 + math.exp(-1)))
    assert _chosen([-1.0]) == -1


class Planted(ModelPolicy):
    "Finds a reply likely after a thought that holds its word; itself it knows no state"

    rows, bonus = 0, 5.0

    async def generate(self, rows, sampling=None, prefixes=None):
        return [Completion([1], f"<{r['level']}>eh</{r['level']}>", "stop") for r in rows]

    def token_logps(self, prompt_ids, completion_ids, temperature=None):
        assert temperature == 1.0
        self.rows += len(completion_ids)

        ids = {tag: self.tokenizer.convert_tokens_to_ids(tag) for tag in TAGS}

        def spread(prompt, completion):
            written = [*prompt, *completion]
            at = len(written) - written[::-1].index(ids["<response>"])
            begin = written.index(ids["<stance>"])
            thought, text = (self.tokenizer.decode(t) for t in (written[begin:at], written[at:]))
            cost = 20 - self.bonus * any(w in thought and w in text for w in WORDS)
            n = len(written) - at
            return [0.0] * (len(completion) - n) + [-cost / n] * n

        return [spread(*pair) for pair in zip(prompt_ids, completion_ids)]


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    texts = [f"{e.reply} {e.persona.text} {e.context[0].content} eh" for e in EXAMPLES]
    config = ModelConfig(vocab=300, hidden=32, layers=2, heads=4, kv_heads=4, head_dim=8)
    return make_model(config, texts * 4, TAGS)


def settings(**reward):
    return SimpleNamespace(
        hierarchy=ASKED,
        reward=RewardConfig(**reward),
        rollout=RolloutConfig(group_size=4),
        advantage=AdvantageConfig(),
        judge=JudgeConfig(model="likelihood"),
        run=SimpleNamespace(seed=0),
    )


def step(policy, texts, level="stance", live=False, examples=EXAMPLES[::2], **reward):
    "Let a method score these texts, one group an example; the method, and what it scored"
    rows = [r for r in training_rows(examples, ASKED, "humanlm") if r["level"] == level]
    words = frozenset("well person is eh".split()) | {*WORDS}
    reader = Reader(None if live else policy, ASKED, EXAMPLES, words)
    method = alignment_method(settings(**reward), reader, rows, EXAMPLES)

    class Says(Planted):
        async def generate(self, rows, sampling=None, prefixes=None):
            if sampling:  # greedy: what the reader itself would say
                return await super().generate(rows, sampling)
            return [
                Completion([1], f"<{level}>{texts[i % len(texts)](r)}</{level}>", "stop")
                for i, r in enumerate(rows)
            ]

    writes = Says(policy.model, policy.tokenizer)
    writes.bonus = policy.bonus
    written = run_sync(method.rollout(repeat_rows(rows, len(texts)), writes))
    return method, writes, run_sync(method.reward(written))


def word_of(row):
    return WORDS[int(row["example_id"][1:])]


def test_true_states_pay_and_others_do_not(tiny):
    policy = Planted(*tiny)
    texts = [
        word_of,
        lambda r: WORDS[1 + int(r["example_id"][1:])],
        lambda r: "",
        lambda r: "zzz eh",
    ]
    method, _, (values, scored) = step(policy, texts)
    assert values[:4, 0] == pytest.approx(
        [5 / byte_count(EXAMPLES[0].reply), 0, -0.03, 0], abs=1e-9
    )
    assert [t.scores["stance"].value for t in scored] == pytest.approx(values[:, 0].tolist())
    assert (
        method.advantage(Batch(torch.tensor(values), torch.arange(16) // 4, None, scored))
        .reshape(-1, 4)
        .argmax(1)
        .tolist()
        == [0] * 4
    )
    noted = method.metrics(Batch(torch.tensor(values), None, None, scored))
    assert noted["likelihood/leak"] == pytest.approx(0) and noted["likelihood/stance"] > 0.1
    assert noted["likelihood/unknown_words"] == pytest.approx(1 / 4)  # of two texts' words


def test_contrast_and_mixture_reach_the_reward(tiny):
    policy = Planted(*tiny)
    _, _, (single, _) = step(policy, [word_of, lambda r: "eh"])
    policy.rows = 0
    _, _, (contrast, _) = step(policy, [word_of, lambda r: "eh"], credit="contrast")
    assert policy.rows == 2 * 4 * 4  # two texts, base and leak; each with one other's reply
    assert contrast[0, 0] > contrast[1, 0]
    _, _, (mixture, _) = step(policy, [word_of, lambda r: "eh"], credit="mixture")
    assert mixture[0, 0] > mixture[1, 0] and mixture[0, 0] != pytest.approx(single[0, 0])
    with pytest.raises(ConfigError, match="two people"):
        reader = Reader(policy, ASKED, EXAMPLES[::2])
        LikelihoodReward(reader, {}, RewardConfig(credit="contrast"))


def test_the_supervised_term_has_the_gradient_of_a_plain_loop(tiny):
    model, tokenizer = tiny
    policy, rng = ModelPolicy(model, tokenizer), random.Random(0)
    thoughts = [{"stance": rng.choice(WORDS)} for _ in range(6)]
    spans = [reply_span(policy, EXAMPLES[i // 3], ASKED, z) for i, z in enumerate(thoughts)]
    reward = SimpleNamespace(spans={str(i): s for i, s in enumerate(spans)})
    batch = Batch(None, None, None, [SimpleNamespace(id=str(i)) for i in range(7)])
    tensors = LikelihoodReward.lessons(reward, batch)  # the seventh text was unreadable

    def gradient(loss):
        model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    weights = torch.full((7, 4), 1 / 28)
    loss, numbers = _reply_loss(2.0)(model, tensors | {"weights": weights})
    packed, plain = gradient(loss), 0.0
    for s in spans:
        ids = torch.tensor([s.prompt + s.before + s.reply])
        table, n = model(ids).logits[0].log_softmax(-1), len(s.reply)
        plain -= table[-n - 1 : -1].gather(-1, ids[0, -n:, None]).mean() / len(spans)
    assert loss.item() == pytest.approx(2 * plain.item(), rel=1e-5)
    assert numbers["likelihood/reply_loss"].item() == pytest.approx(plain.item(), rel=1e-5)
    assert torch.allclose(packed, gradient(2 * plain), rtol=1e-3, atol=1e-6)


MINI = ["--config", "configs/humanlm-mini.yaml", "--judge.model", "likelihood"]
SMALL = {
    "run": {"token_budget": None},
    "data": {"max_train": 40, "max_test": 2},
    "world": {"users": 24, "replies_per_user": 8},
    "hierarchy": {"levels": ["stance", "goal", "response"], "thought_tokens": 40},
    "model": {"vocab": 1100, "hidden": 48, "heads": 4, "kv_heads": 4, "head_dim": 12, "mlp": 128},
    "sft": {"lesson_steps": 110, "polite_steps": 8, "faithful_steps": 4, "batch": 8}
    | {"adam_lr": 0.015},
    "rollout": {"num_prompts": 2, "group_size": 4},
    "trainer": {"max_steps": 4, "save_steps": 2, "save_total_limit": 3},
}


def arguments(more):
    groups = {g: SMALL.get(g, {}) | more.get(g, {}) for g in {*SMALL, *more}}
    return MINI + [
        f"--{group}.{name}={json.dumps(value) if not isinstance(value, str) else value}"
        for group, part in groups.items()
        for name, value in part.items()
    ]


def weights(folder):
    return load_model(folder).model.state_dict()


def test_a_run_is_paid_by_a_frozen_reader_and_resumes(tmp_path, monkeypatch):
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    asked = {"run": {"out": str(tmp_path), "name": "a", "methods": ["humanlm-composed"]}}
    assert humanlm.train.main(arguments(asked)) == 0
    run = tmp_path / "a"
    assert json.loads((run / "run.json").read_text())["judge"] == "likelihood"
    rows = [r for r in read_jsonl(run / "metrics.jsonl") if r["stage"] == "humanlm-composed"]
    assert any(r.get("kl") for r in rows) and any(r.get("likelihood/leak") for r in rows)
    texts = [
        t for f in (run / "trajectories/humanlm-composed").iterdir() for t in load_trajectories(f)
    ]
    assert {t.level for t in texts} == {"stance", "goal"} and any(t.advantage for t in texts)
    first = weights(run / "models/humanlm-composed")
    for name in ("models/humanlm-composed", "checkpoints/humanlm-composed/checkpoint-4"):
        shutil.rmtree(run / name)
    (run / "run.json").write_text((run / "run.json").read_text().replace('"finished"', '"started"'))
    assert humanlm.train.main([*arguments(asked), "--resume"]) == 0
    again = weights(run / "models/humanlm-composed")
    assert all(torch.equal(again[name], value) for name, value in first.items())


def test_states_and_thoughts_are_paid_by_a_live_reader_that_learns(tmp_path):
    methods = ["humanlm", "response-only-think"]
    asked = {
        "run": {"out": str(tmp_path), "name": "b", "methods": methods},
        "hierarchy": {"thinking": "off"},
        "rollout": {"compose": False},
        "judge": {"reader": "live"},
        "trainer": {"max_steps": 6},
    }
    assert humanlm.train.main(arguments(asked)) == 0
    rows = read_jsonl(tmp_path / "b/metrics.jsonl")
    for name in methods:
        own = [r for r in rows if r["stage"] == name]
        assert any(r.get("likelihood/reply_loss", 0) > 0 for r in own), name
        assert not any("kl" in r for r in own)
    folder = tmp_path / "b/trajectories/response-only-think"
    thoughts = [t for file in folder.iterdir() for t in load_trajectories(file)]
    assert {t.level for t in thoughts} == {"thought"}
    assert not any(t.text.partition("</think>")[2].strip() for t in thoughts)  # no reply
