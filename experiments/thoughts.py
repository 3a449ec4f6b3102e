"""How much does a reply use the thought before it? Behind results/state-alignment.json.

Finished runs in the synthetic world answer further questions. Models that think get thoughts that
they did not write: random states, and the true states. Other replies are composed after the states
that this model or another one wrote. Each case is an arm with two scores: the states in its
thoughts (`thought_alignment`), and how well replies follow these states (`follows_thought`). From
the folder of this repository:

    python -m humanlm.experiment --config configs/experiments/state-alignment.yaml
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import prefixes  # noqa: F401  adds the mode prefix-chaining
from experiments.thought_bits import ComposedConfig, state_source, with_thoughts
from humanlm.alignment.evaluation import (
    Evaluation,
    evaluate,
    judge_texts,
    load_evaluations,
    measured,
    policy_of,
    texts_beside,
)
from humanlm.alignment.modes import (
    MODES,
    cold_start_hierarchy,
    settings_of,
)
from humanlm.alignment.recipe import AlignmentStudy, HumanLM
from humanlm.core.basics import run_sync, write_jsonl
from humanlm.core.config import Settings
from humanlm.core.records import Example
from humanlm.core.stats import known_mean
from humanlm.evaluation.measured import (
    ALL,
    results,
    score_table,
)
from humanlm.evaluation.outcome import Arms, Table, rounded
from humanlm.hierarchy.composed import StateSource, states_in
from humanlm.hierarchy.levels import word_count
from humanlm.hierarchy.prompts import TRACE
from humanlm.rewards.judge_settings import make_judge
from humanlm.rewards.scoring import Judge
from humanlm.training.experiment import Trial
from humanlm.worlds.oracle import read
from humanlm.worlds.sources import load_data
from humanlm.worlds.states import States


def _told(
    kind: str,  # truth or dice
    world: Any,  # a `SyntheticWorld`
) -> Callable:  # examples → example id → level → description, as a source of composed replies
    "Return a source of thoughts with the true states of each example, or random states"
    rng = random.Random("dice0")

    def thought(e):
        dice = States.uniform(world.posts[e.context_id].target, rng).describe(rng)
        texts = dice if kind == "dice" else e.states or {}
        return {level: texts[level] for level in TRACE}

    async def thoughts(examples: Sequence[Example]) -> dict[str, dict[str, str]]:
        return {e.id: thought(e) for e in examples}

    return thoughts


def _thought_states(thought: str) -> dict[str, str]:  # level → description
    "Read the states in a thought"
    return {level: text for level, text in states_in(thought).items() if level in TRACE}


def _follows(
    thought: str,
    reply: str,
) -> dict[str, float]:  # level → 1 same state, 0 another; nan: one of them is silent
    "Compare the states of a thought with those that the oracle reads from a reply"
    expressed, states = read(reply).expressed(), _thought_states(thought)

    def same(level):
        named = read(states.get(level, "")).expressed().get(level)
        return float(named == expressed[level]) if named and level in expressed else math.nan

    return {level: same(level) for level in TRACE}


def _measures(
    evaluations: Sequence[Evaluation],
    examples: Sequence[Example],  # in the same order
    judge: Judge,
    thought: str = "",  # where thoughts come from: own, dice or truth; empty: there are none
) -> Table:
    "Collect the measurements of one arm and seed"
    status = [e.scores["response_alignment"]["response"].status for e in evaluations]
    table = score_table(measured(evaluations, examples)) | {
        "format": {"response": [float(s not in ("bad format", "empty")) for s in status]},
        "words": {"response": [float(word_count(e.texts["response"])) for e in evaluations]},
    }
    if not thought:
        return table
    if thought == "own":
        states = [_thought_states(e.thought) for e in evaluations]
        texts = [{level: s.get(level, "") for level in TRACE} | {"response": ""} for s in states]
        judged = run_sync(judge_texts(examples, texts, judge, reply_states=False))
        scores = score_table(measured(judged, examples))
        table["thought_alignment"] = scores["state_alignment"]
    same = [_follows(e.thought, e.texts["response"]) for e in evaluations]
    return table | {"follows_thought": {level: [row[level] for row in same] for level in TRACE}}


def _thinkers(
    settings: Settings,
) -> dict[str, str]:  # settings: of a run; → name of the arm → name of the model
    "List the models that think before they reply; with a thinking method, also the cold start"
    if not cold_start_hierarchy(settings).thinks("response"):
        return {}
    methods = settings.run.methods
    able = [n for n in methods if settings_of(settings, n).hierarchy.thinks("response")]
    return {"cold-start-think": "cold-start"} | dict(zip(able, able))


def _aligned(settings: Settings) -> list[str]:
    "Return the methods that train states at their own level"
    return [name for name in settings.run.methods if MODES[name].asks == "each"]


def _composers(
    settings: Settings,  # of a run
) -> dict[
    str, tuple[str, str | None]
]:  # arm → model that replies, model that answers the states (None: the same)
    "List the arms with composed replies of models that were trained without them"
    if not (think := _thinkers(settings)):
        return {}
    aligned = _aligned(settings)
    names = dict.fromkeys([*think.values(), *aligned])
    others = [name for name in names if name not in MODES or not MODES[name].composed]
    arms: dict[str, tuple[str, str | None]] = {
        f"{name} (composed)": (name, None) for name in others
    }
    return arms | {f"cold-start (states of {name})": ("cold-start", name) for name in aligned}


class _FollowUp(NamedTuple):
    "A further question to a model of a finished run"

    arm: str
    kind: str  # dice, truth, own, composed or validation
    model: str
    settings: Settings

    def path(self, trial: Trial) -> Path:
        return _told_file(trial.folder, self.arm, self.kind)


def _told_file(folder: Path, arm: str, kind: str) -> Path:
    "Return the file of the answers, see `_FollowUp`"
    return folder / "told" / f"{arm}-{kind}.jsonl"


def _candidates(settings: Settings) -> list[str]:
    "Return the arms with replies after states trained at their own level, to choose from"
    aligned = _aligned(settings)
    composed = [name if MODES[name].composed else f"{name} (composed)" for name in aligned]
    return composed + [f"cold-start (states of {name})" for name in aligned]


VALIDATION = "test_seen"  # the split on which arms are chosen: held-out posts to people of training


def _follow_ups(s: Settings) -> list[_FollowUp]:
    "List the further questions, where true states are known: set thoughts, composed replies"
    think = _thinkers(s) if s.data.source == "miniworld" else {}
    if not think:
        return []
    aloud = s.changed(hierarchy={"thinking": "hetero"})
    replies = aloud.changed(hierarchy={"levels": ["response"]})
    thoughts = [
        _FollowUp(a, kind, m, replies) for a, m in think.items() for kind in ("dice", "truth")
    ]
    thoughts.append(_FollowUp("cold-start-think", "own", "cold-start", replies))
    composed = [
        _FollowUp(
            arm,
            "composed",
            model,
            aloud.changed(rollout={"compose": True}, composed={"states_from": of}),
        )
        for arm, (model, of) in _composers(s).items()
    ]
    trained = [
        _FollowUp(name, "composed", name, settings_of(s, name))
        for name in s.run.methods
        if MODES[name].composed
    ]
    chosen = [f._replace(kind="validation") for f in composed + trained if f.arm in _candidates(s)]
    return thoughts + composed + chosen


def _ask(trial: Trial) -> None:  # trial: a finished run
    "Ask the further questions of a trial once, and save the answers"
    missing = [f for f in _follow_ups(trial.settings) if not f.path(trial).exists()]
    if not missing:
        return
    data = load_data(trial.settings)
    judge = make_judge(trial.settings.test_judge, data.world, trial.settings.hierarchy.load())
    for follow_up in missing:
        model, s = trial.folder / "models" / follow_up.model, follow_up.settings
        rows = data.split(VALIDATION if follow_up.kind == "validation" else "test")
        states: Any = state_source(s)
        if follow_up.kind in ("dice", "truth"):
            states = _told(follow_up.kind, data.world)
            s = s.changed(rollout={"compose": True})
        evaluations = run_sync(evaluate(policy_of(model, s), rows, s, judge, states))
        write_jsonl(follow_up.path(trial), evaluations)


def _choice(
    trials: Sequence[Trial],
) -> dict[str, Any]:  # trials: finished; → empty where nothing composes
    "Choose the arm with the best composed replies on validation rows, as a mean over seeds"
    means: dict[str, list[float]] = {}
    for trial in trials:
        for name in _candidates(trial.settings):
            path = _told_file(trial.folder, name, "validation")
            if path.exists():
                table = score_table(measured(load_evaluations(path)))
                score = known_mean(np.array(table["response_alignment"]["response"]))
                means.setdefault(trial.arm(name), []).append(float(score))
    by_arm = {arm: float(np.mean(values)) for arm, values in means.items()}
    if not by_arm:
        return {}
    chosen = max(by_arm, key=by_arm.__getitem__)
    return {
        "split": VALIDATION,
        "response_alignment": by_arm,
        "chosen": chosen,
        "by_seed": rounded([row for trial in trials for row in _against(trial, chosen)]),
    }


def _against(
    trial: Trial,  # finished
    arm: str,  # that was chosen
) -> list[dict]:  # differences of response alignment on test rows, with intervals over contexts
    "Return pairs of the chosen arm with the composed cold start and with every method"
    texts = {trial.arm(name): measured(evaluations) for name, evaluations, _ in _arm_texts(trial)}
    others = map(trial.arm, ("cold-start (composed)", *trial.settings.run.methods))
    rows = []
    for other in [o for o in others if arm in texts and o in texts and o != arm]:
        paired = results({name: texts[name] for name in (other, arm)}).paired
        p = next(p for p in paired if (p.metric, p.level) == ("response_alignment", ALL))
        difference = {"diff": p.diff, "low": p.low, "high": p.high}
        rows.append({"seed": trial.seed, "a": p.a, "b": p.b} | difference)
    return rows


TOLD = {"own": "", "dice": " (told dice)", "truth": " (told the truth)"}


class _ArmTexts(NamedTuple):
    "The texts of one arm of a run for the held-out examples"

    arm: str
    evaluations: list[Evaluation]
    thought: str = ""  # where its thoughts come from: own, dice or truth; empty: it does not think


def _arm_texts(trial: Trial) -> Iterator[_ArmTexts]:
    "Read the texts of the models of a finished run"
    think = _thinkers(trial.settings)
    for model in ("cold-start", *trial.settings.run.methods):
        path = trial.folder / "evaluations" / f"{model}.jsonl"
        yield _ArmTexts(model, load_evaluations(path), "own" if model in think else "")
    answers = [(arm, kind, note, kind) for arm in think for kind, note in TOLD.items()]
    answers += [(arm, "composed", "", "own") for arm in _composers(trial.settings)]
    for arm, kind, note, thought in answers:
        if (path := _told_file(trial.folder, arm, kind)).exists():
            yield _ArmTexts(arm + note, load_evaluations(path), thought)


class ThoughtStudy(AlignmentStudy):
    "A study with set thoughts and composed replies as further arms"

    def after(self, trial: Trial) -> None:
        _ask(trial)

    def is_done(self, trial: Trial) -> bool:
        return all(f.path(trial).exists() for f in _follow_ups(trial.settings))

    def tables(self, trial: Trial) -> Iterator[tuple[str, Table]]:
        s = trial.settings
        data = load_data(s)
        judge, rows = make_judge(s.test_judge, data.world), data.split("test")
        for arm, evaluations, thought in _arm_texts(trial):
            yield arm, _measures(evaluations, rows, judge, thought)

    def references(self, trial: Trial) -> dict[str, Table]:
        "Measure chance, the constant answer and the ceiling of the synthetic world"
        s, data = trial.settings, load_data(trial.settings)
        judge, rows = make_judge(s.test_judge, data.world), data.split("test")
        by_name = {
            name: run_sync(judge_texts(rows, texts, judge))
            for name, texts in texts_beside(data, rows).items()
        }
        return {name: _measures(evaluations, rows, judge) for name, evaluations in by_name.items()}

    def pairs(self, s: Settings, against: Sequence[str]) -> list[tuple[str, str]]:
        "Return pairs: thinking models with the thinking cold start and with true thoughts"
        think, cold, methods = _thinkers(s), "cold-start (composed)", s.run.methods
        composed = [name for name in methods if MODES[name].composed]
        pairs = super().pairs(s, against)
        pairs += [(a, "cold-start-think") for a in think if a != "cold-start-think"]
        pairs += [(f"{a} (told the truth)", a) for a in think]
        pairs += [(a, cold) for a in (*composed, *_composers(s)) if a != cold]
        pairs += [(a, b) for a in composed for b in _aligned(s) if a != b]
        chosen = [a for a in _candidates(s) if a not in methods]
        return pairs + [(a, b) for a in chosen for b in against if b in methods]

    def complete(self, trials: Sequence[Trial], found: Arms) -> dict[str, Any]:
        "Add the chosen arm"
        return super().complete(trials, found) | {"choice": _choice(trials)}


class ThoughtRecipe(HumanLM):
    "The recipe HumanLM with further questions to finished runs"

    groups = HumanLM.groups | {"composed": ComposedConfig}
    study = "experiments.thoughts:ThoughtStudy"
    bits = staticmethod(with_thoughts)

    def states(self, s: Settings) -> StateSource | None:
        return state_source(s)

    def rows(self, s: Settings, name: str, examples: Sequence[Example]) -> list[dict]:
        "Return the rows; with another model's states, train only composed replies"
        rows = HumanLM.rows(s, name, examples)
        alone = MODES[name].composed and s.composed.states_from
        return [row for row in rows if row["level"] == "response"] if alone else rows


recipe = ThoughtRecipe()
