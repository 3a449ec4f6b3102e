"""Close the loop for those who play a person without a model, in a few minutes: the people, somebody polite, and people of whom a share of the states is replaced by chance.

    python bench/loop_known.py [--config configs/experiments/loop.yaml] [--out results/loop-known.json]

Scenes and assistants lie in the runs of the experiment, which finds them there when it trains simulators; whoever was stopped goes on.
"""
import argparse
from pathlib import Path

from humanlm.core.basics import atomic_write, to_json
from humanlm.core.runs import run_record
from humanlm.studies.loop import KNOWN, _kept_assistant, _loop_findings
from humanlm.training.trials import experiment_settings, trials_of

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--config", default="configs/experiments/loop.yaml")
parser.add_argument("--out", default="results/loop-known.json")
own = parser.parse_args()

recipe, settings = experiment_settings(["--config", own.config])
trials = trials_of(recipe, settings)
for trial in trials:
    for person in KNOWN:
        _kept_assistant(trial, person)
        print(trial.settings.run.name, person, flush=True)
record = run_record(settings, None, None, "finished")
facts = {name: record.get(name) for name in ("versions", "commit", "machine", "written")}
head = {"schema_version": 1, "command": f"python bench/loop_known.py --config {own.config}", "seeds": settings.experiment.seeds, "settings": {"loop": settings.to_dict()["loop"]}}
atomic_write(Path(own.out), to_json(head | facts | _loop_findings(trials, KNOWN), indent=1) + "\n")
