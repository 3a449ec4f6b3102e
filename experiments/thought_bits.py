"""The gain in bits of the real reply from states and thoughts before the reply.

Behind results/bits.json and results/people.json. Recipes that take `with_thoughts` as `bits`
measure bits with each persona, and also the bits that a model's own states or thoughts save.
"""

import random
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from humanlm.alignment.bits import model_bits, reply_span, thoughts_alone
from humanlm.alignment.contract import ModelChoice, load_policy
from humanlm.alignment.evaluation import policy_of
from humanlm.clients.names import is_chat_model
from humanlm.core.basics import run_sync
from humanlm.core.config import Settings
from humanlm.core.records import Example
from humanlm.core.runs import watched
from humanlm.core.stats import known_mean
from humanlm.evaluation.measured import BITS, Measurement
from humanlm.hierarchy.composed import StateSource, read_answer
from humanlm.hierarchy.prompts import HierarchyConfig, make_rows
from humanlm.models.bits import bits_per_byte, span_logps
from humanlm.training.sampling import Sampling

DRAWS = 8  # thoughts of a model about a row, of which the mixture is made


@dataclass(frozen=True)
class ComposedConfig:
    "The model that writes the states before composed replies"

    states_from: str | None = None
    """Model that writes the states: one of the run, another run, a folder, or a name of the Hub.
    null: the model itself. With another model, training asks for replies only."""


def state_source(
    s: Settings,  # of a run, with the groups run and rollout, and perhaps composed
) -> StateSource | None:  # None: the policy itself
    "Load the model that writes the states of composed replies, with the likeliest tokens"
    name = s.groups["composed"].states_from if "composed" in s.groups else None
    if not (s.rollout.compose and name):
        return None
    folder = Path(s.run.out) / s.run.name / "models" / name
    setup = load_policy(folder if folder.is_dir() else ModelChoice(name).place)
    write = partial(setup.policy.generate, sampling=replace(setup.sampling, temperature=0.0))
    return StateSource(setup.hierarchy, write)


def thought_bits(
    policy: Any,  # with the tokenizer of the model, as `ModelPolicy`
    examples: Sequence[Example],  # held-out rows
    hierarchy: HierarchyConfig,
    before: str,  # what the model writes before a reply: states, thoughts
    states: StateSource | None = None,  # who answers those; None: the policy itself
    seed: int = 0,  # of rows and thoughts that are drawn
    batch: int = 150,  # thoughts written together
) -> list[dict[str, float]]:  # metric → bits a byte; one per example
    "Measure the bits that thoughts save: mean and mixture, own thoughts and another person's"
    thoughts, measured = _thoughts(policy, examples, hierarchy, before, states, seed, batch), []
    for i in watched(len(examples), 1, "bits of thoughts"):
        e, j = examples[i], _other_row(examples, examples[i], seed)
        tried = [z for at in (i, j) if at is not None for z in thoughts[at]]
        spans = [reply_span(policy, e, hierarchy, z) for z in ({}, *tried)]
        plain, *logps = span_logps(policy.token_logps, spans)
        measured.append(_state_values(e, plain, logps))
    return measured


def with_thoughts(place: str, examples: Sequence[Example], settings: Settings) -> list[Measurement]:
    "Measure bits as `model_bits` does, and the bits that a model's states or thoughts save"
    s, measured = settings, model_bits(place, examples, settings)
    before = "thoughts" if s.hierarchy.thinks("response") else ""
    before = "states" if s.rollout.compose else before
    if is_chat_model(place) or not before:
        return measured
    more = before, state_source(s), s.run.seed, s.eval.batch
    values = thought_bits(policy_of(place, s), examples, s.hierarchy, *more)
    parts = [{BITS + name: {"response": v} for name, v in row.items()} for row in values]
    return [m._replace(values=m.values | part) for m, part in zip(measured, parts, strict=True)]


def _other_row(examples, e, seed):
    "Draw the index of a row of another person in another discussion; None if there is none"
    others = [
        i for i, o in enumerate(examples) if o.user_id != e.user_id and o.context_id != e.context_id
    ]
    return random.Random(f"{seed}/{e.id}").choice(others) if others else None


def _state_values(e: Example, plain: float, logps: Sequence[float]) -> dict[str, float]:
    "Compare log p without a thought, after own thoughts, and after another person's"
    [bare] = bits_per_byte(np.array([plain]), [e.reply])
    values = {}
    for of, name in ((logps[:DRAWS], ""), (logps[DRAWS:], "_other")):
        mixed = np.logaddexp.reduce(of) - np.log(DRAWS) if len(of) else np.nan
        one, all = bits_per_byte(np.array([known_mean(np.array(of)), mixed]), [e.reply] * 2)
        values |= {f"state_1{name}": float(bare - one), f"state_{DRAWS}{name}": float(bare - all)}
    return values


def _thoughts(policy, examples, hierarchy, before, states, seed, batch) -> list[list[Mapping]]:
    "Write several thoughts for each row; unreadable thoughts are left out"
    write, config = (states.write, states.config) if states else (policy.generate, hierarchy)
    levels = config.load().states if before == "states" else ["response"]
    rows = [row for e in examples for row in make_rows([e], config, levels) * DRAWS]
    if before == "thoughts":
        rows = thoughts_alone(rows, config.thought_tokens)
    answers: list[Any] = []
    for at in watched(len(rows), batch, before):
        part, sampling = rows[at : at + batch], Sampling(temperature=1.0, seed=seed + at)
        for row, c in zip(part, run_sync(write(part, sampling=sampling)), strict=True):
            fields = read_answer(row, c.text, config.strict).fields
            if before == "thoughts":
                fields = [*c.ids] if any(map(str.strip, fields.values())) else []
            answers.append(fields)
    if before == "states":
        answers = [dict(ChainMap(*some)) for some in _cut(answers, len(levels))]
    return _cut(answers, DRAWS)


def _cut(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]
