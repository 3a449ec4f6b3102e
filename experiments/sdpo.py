"""Tastes, teachers and controls from one cold start: the experiments behind results/sdpo*.json.

From the folder of this repository:

    python -m humanlm.experiment --config configs/experiments/sdpo.yaml
"""

from collections.abc import Sequence
from typing import Any

from humanlm.core.basics import to_json
from humanlm.core.config import Settings
from humanlm.evaluation.figures import curve
from humanlm.evaluation.outcome import Arms, rounded
from humanlm.evaluation.report import load_log
from humanlm.sdpo.recipe import recipe as sdpo
from humanlm.training.trials import Study, Trial


class SDPOStudy(Study):
    "Models of one seed share the lessons; each is compared with the start"

    against = ("cold-start",)

    def models(self, s: Settings) -> list[str]:
        "Name the models that are compared, without an untrained one where there are lessons"
        return [name for name in super().models(s) if name != "base" or not sdpo.teaches(s)]

    def shared(self, s: Settings) -> dict[str, str]:
        "Name the models before any follow-up, with all that they depend on"
        depends = to_json([s.model, s.sft, s.prompts.train, s.run.seed])
        return dict.fromkeys(["base", "cold-start"], depends) if sdpo.teaches(s) else {}

    def pairs(self, s: Settings, against: Sequence[str]) -> list[tuple[str, str]]:
        "Compare with the start, and each phase with the one before"
        phases = [name for name in self.models(s) if name.startswith("online")]
        return [*super().pairs(s, against), *zip(phases[1:], phases)]

    def complete(self, trials: Sequence[Trial], arms: Arms) -> dict[str, Any]:
        "Add what each seed moved by itself, and how users fared on the way"
        pairs = {
            (trial.arm(name), trial.arm("cold-start")): None
            for trial in trials
            for name in self.models(trial.settings)
            if name != "cold-start" and trial.arm("cold-start") in arms.tables
        }
        seeds = list(dict.fromkeys(trial.seed for trial in trials))
        return {
            "by_seed": rounded(arms.seed_changes(list(pairs), "preference", seeds)),
            "preference_curves": rounded(preference_curves(trials)),
        }


def preference_curves(trials: Sequence[Trial], points: int = 30) -> list[dict]:
    "Give the preference of the replies in training, stage by stage, in `points` means"
    curves = []
    for trial in trials:
        log = load_log(trial.folder / "metrics.jsonl")
        for stage in dict.fromkeys(line["stage"] for line in log):
            values = curve(log, stage, "user/preference")
            if values.values:
                shown = values.thin(points)
                names = {"variant": trial.variant, "stage": stage, "seed": trial.seed}
                curves.append(names | {"steps": shown.steps, "preference": shown.values})
    return curves


class StudiedSDPO(type(sdpo)):
    "SDPO, as these experiments run it"

    study = "experiments.sdpo:SDPOStudy"


recipe = StudiedSDPO()
