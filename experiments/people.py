"""States and thoughts on real people, in bits of their replies. Behind results/people*.json.

The true states of real people are unknown. So each model is measured by the bits of the real
replies and by a detector that separates its replies from real ones. One chat is shown too. From the
folder of this repository, for about ten hours on two cores:

    make people
"""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.thought_bits import with_thoughts
from humanlm.alignment.bits import NGRAM
from humanlm.alignment.recipe import AlignmentStudy, HumanLM
from humanlm.core.config import Settings
from humanlm.core.runs import read_record
from humanlm.evaluation.measured import AUC, load_measured, load_results, score_table
from humanlm.evaluation.outcome import Arms, Table
from humanlm.training.experiment import Trial


def _with_bits(trial: Trial, name: str) -> Table:
    "Read the measurements of a model of a run, and its bits"
    bits = trial.folder / f"bits-{trial.settings.eval.bits}"
    files = [trial.measured(name), bits / f"{name}.jsonl"]
    tables = [score_table(load_measured(file)) for file in files if file.is_file()]
    return dict(ChainMap(*tables[::-1]))


def _outcome_of(trial: Trial) -> dict[str, Any]:
    "Return how well a detector separates replies from real ones, the time, and one chat"
    stored, record = load_results(trial.folder / "results.json"), read_record(trial.folder)
    return {
        "variant": trial.variant,
        "seed": trial.seed,
        "told_from_people": {
            r.model: [r.mean, r.low, r.high] for r in stored.rows if r.metric == AUC
        },
        "seconds": record.get("seconds"),
        "machine": record.get("machine"),
        "example": stored.notes.get("example"),
    }


class PeopleStudy(AlignmentStudy):
    "Compare bits, with the untrained model among the arms"

    def models(self, s: Settings) -> list[str]:
        return ["base", *super().models(s)]

    def tables(self, trial: Trial) -> Iterator[tuple[str, Table]]:
        for model in self.models(trial.settings):
            yield model, _with_bits(trial, model)

    def references(self, trial: Trial) -> dict[str, Table]:
        return {NGRAM: _with_bits(trial, NGRAM)}

    def complete(self, trials: Sequence[Trial], found: Arms) -> dict[str, Any]:
        "Add the source of the data, and the detector and chat of each run"
        note = super().complete(trials, found)["note"]
        return {"note": note, "runs": [_outcome_of(trial) for trial in trials]}


class PeopleRecipe(HumanLM):
    "The recipe HumanLM, compared in bits"

    study = "experiments.people:PeopleStudy"
    bits = staticmethod(with_thoughts)


recipe = PeopleRecipe()
