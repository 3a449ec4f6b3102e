"""States and thoughts on real people: bits of what they really said. Behind results/people.json.

Nobody knows the true states of real people, so an arm is measured by the bits of their replies, by
how well a detector tells its replies from theirs, and shown in one chat. From the folder of this
repository, for two to three days on two cores:

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
    "Read what was measured of a model of a run, and its bits"
    bits = trial.folder / f"bits-{trial.settings.eval.bits}"
    files = [trial.measured(name), bits / f"{name}.jsonl"]
    tables = [score_table(load_measured(file)) for file in files if file.is_file()]
    return dict(ChainMap(*tables[::-1]))


def _outcome_of(trial: Trial) -> dict[str, Any]:
    "Say how well a detector tells replies from those of people, how long all took, and one chat"
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
    "Compare bits, the untrained model among the arms"

    def models(self, s: Settings) -> list[str]:
        return ["base", *super().models(s)]

    def tables(self, trial: Trial) -> Iterator[tuple[str, Table]]:
        for model in self.models(trial.settings):
            yield model, _with_bits(trial, model)

    def references(self, trial: Trial) -> dict[str, Table]:
        return {NGRAM: _with_bits(trial, NGRAM)}

    def complete(self, trials: Sequence[Trial], found: Arms) -> dict[str, Any]:
        "Add where the data come from, and each run's detector and chat"
        note = super().complete(trials, found)["note"]
        return {"note": note, "runs": [_outcome_of(trial) for trial in trials]}


class PeopleRecipe(HumanLM):
    "HumanLM, compared in bits"

    study = "experiments.people:PeopleStudy"
    bits = staticmethod(with_thoughts)


recipe = PeopleRecipe()
