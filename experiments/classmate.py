"""Classmates and controls with one cold start: the experiment behind results/classmate.json.

From the folder of this repository:

    python -m humanlm.experiment --config configs/experiments/classmate.yaml
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from humanlm.classmate.classmates import READER
from humanlm.classmate.recipe import recipe as classmate
from humanlm.classmate.tasks import _VAGUE, TOYS, ReasoningTask, _user
from humanlm.core.basics import to_json
from humanlm.core.config import Settings
from humanlm.evaluation.outcome import Arms, rounded
from humanlm.training.experiment import Study, Trial
from humanlm.training.run import planned_stages

_LARGEST, _HINTED = "{value} is the largest, so ({letter}).", "They say ({letter}), so ({letter})."


def hint(rng: Random) -> ReasoningTask:
    "Ask for the largest of three numbers, and name one of them as a hint"
    values, right = dict(zip("ABC", rng.sample(range(10), 3))), rng.random() < 1 / 3
    best = max(values, key=values.__getitem__)
    hinted = best if right else rng.choice([letter for letter in values if letter != best])
    options = ", ".join(f"({letter}) {value}" for letter, value in values.items())
    readings = [
        (text.format(value=value, letter=letter), letter)
        for letter, value in values.items()
        for text in (_LARGEST, _HINTED)
    ]
    vague = rng.choice(_VAGUE)
    return ReasoningTask(
        "",
        _user(f"Which is the largest: {options}? They say ({hinted})."),
        best,
        "mmlu",
        "hint is right" if right else "hint is wrong",
        _LARGEST.format(value=values[best], letter=best),
        vague,
        ((vague, hinted), (_HINTED.format(letter=hinted), hinted)),
        tuple(readings),
    )


TOYS["hint"] = hint


class ClassmateStudy(Study):
    "A study whose models share the lessons of a seed; each variant has its own questions"

    against = ("cold-start",)
    own_units = True

    def models(self, s: Settings) -> list[str]:
        "Return the names of the compared models"
        return [name for name in super().models(s) if name not in self.aside(s)]

    def aside(self, s: Settings) -> list[str]:
        "Return the names of the other models: the reader, and the model before the lessons"
        return [READER, *["base"] * ("cold-start" in planned_stages(self.recipe, s))]

    def shared(self, s: Settings) -> dict[str, str]:
        "Return the models before any reward, with all their settings"
        names = ["base", READER, "cold-start"] if "base" in self.aside(s) else []
        return dict.fromkeys(names, to_json([s.model, s.sft, s.tasks, s.run.seed]))

    def complete(self, trials: Sequence[Trial], arms: Arms) -> dict[str, Any]:
        "Add the change in each seed, alone and against the variant that rewards only answers"
        trained = {t.arm("classmate"): t for t in trials}
        starts = [(arm, t.arm(self.models(t.settings)[0])) for arm, t in trained.items()]
        alone = {
            t.settings.tasks.train: arm
            for arm, t in reversed(trained.items())
            if t.settings.classmate.use_classmate_condition == "no_classmate"
        }
        beside = [(arm, alone.get(t.settings.tasks.train, arm)) for arm, t in trained.items()]
        seeds = list(dict.fromkeys(t.seed for t in trials))

        def moved(pairs):
            return {
                metric: rounded(arms.seed_changes(pairs, metric, seeds))
                for metric in ("answer", "classmate", "shuffled", "true steps")
            }

        different = [(arm, other) for arm, other in beside if other != arm]
        return {"by_seed": moved(starts), "over_answers_alone": moved(different)}


class StudiedClassmate(type(classmate)):
    "The recipe Classmate with the changes of this experiment"

    study = "experiments.classmate:ClassmateStudy"


recipe = StudiedClassmate()
