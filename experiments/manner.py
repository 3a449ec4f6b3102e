"""A reward for human style: reward replies that a detector cannot tell from the real reply.

The detector compares a candidate with the real reply to the same message, and returns the
probability that the candidate is simulated. The reward is 1 if the detector cannot tell, and 0 if
it is sure. Each row has its own detector, which reads the form of a text and not its words. It is
trained on replies of other people in other discussions: real replies no later than the row's, and
simulated replies of earlier steps. Published work finds that a more human style costs meaning
(Computational Turing test, arXiv 2511.04195).

    humanlm train --config humanlm-mini --reward.extra experiments.manner:Manner

results/manner.json shows the effect on a tiny model of the synthetic world, with three seeds of
40,000 generated tokens each: states -0.02 (-0.05 to 0.01), replies +0.01 (-0.04 to 0.06), states
that can be read from replies +0.06 (0.01 to 0.10). The style did not become more human. In every
seed, a detector that reads words has an AUC of 0.99 or more with and without the reward. A detector
that reads form has 0.82, 0.78, 0.89 without and 0.87, 0.88, 0.86 with the reward.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from humanlm.core.basics import atomic_write, to_json
from humanlm.core.records import Example
from humanlm.core.trajectory import Trajectory
from humanlm.evaluation.detection import DETECTORS

LEAST = 20  # simulated replies without which nothing can be told


class Manner:
    "Reward replies that a detector, trained on replies of earlier steps, takes for real"

    file = "manner.json"

    def __init__(
        self,
        examples: Sequence[Example],  # of training
        detector: str = "form",  # of `DETECTORS`
        most: int = 400,  # simulated replies that are kept, the latest
    ):
        self.examples, self.detector, self.most = {e.id: e for e in examples}, detector, most
        self.replies: list[list[str]] = []  # id of the example and what was replied, oldest first

    def __call__(
        self, trajectories: Sequence[Trajectory]
    ) -> list[float]:  # in [0, 1]; 0 where there is no reply
        "Return the rewards of a batch"
        by_example: dict[str, list[int]] = {}
        for i, t in enumerate(trajectories):
            if _reply(t):
                by_example.setdefault(t.example_id, []).append(i)
        paid = {
            i: value
            for id, at in by_example.items()
            for i, value in zip(
                at, self._pay(self.examples[id], [_reply(trajectories[i]) for i in at])
            )
        }
        return [paid.get(i, 0.0) for i in range(len(trajectories))]

    def _pay(self, e: Example, replies: Sequence[str]) -> list[float]:
        "Train a detector for one example, and compare each reply with the real one"
        taught = [(id, text) for id, text in self.replies if _may_teach(self.examples[id], e)]
        if len(taught) < LEAST:
            return [1.0] * len(replies)
        real = [self.examples[id].reply for id in dict.fromkeys(id for id, _ in taught)]
        train, n = np.arange(len(taught) + len(real)), len(taught) + len(real)
        detector = DETECTORS[self.detector](
            [*(text for _, text in taught), *real, e.reply, *replies]
        )
        scores = detector.score(
            train, (train < len(taught)).astype(int), np.arange(n, n + 1 + len(replies))
        )
        return [
            min(1.0, 2 / (1 + math.exp(min(50.0, score - scores[0]))))
            for score in scores[1:].tolist()
        ]

    def note(self, trajectories: Sequence[Trajectory]) -> list[list[str]]:
        "Save the model's replies of a step"
        return [
            [t.example_id, text]
            for t in trajectories
            if (text := _reply(t)) and text != self.examples[t.example_id].reply.strip()
        ]

    def learn(self, notes: Sequence[list[str]]) -> dict[str, float]:
        "Add the replies of a step, and drop the oldest"
        self.replies = [*self.replies, *notes][-self.most :]
        return {"manner/replies": float(len(self.replies))}

    def save(self, path: str | Path) -> Path:
        return atomic_write(path, to_json(self.replies))

    def load(self, path: str | Path) -> None:
        self.replies = json.loads(Path(path).read_text("utf-8"))


def _reply(t: Trajectory) -> str:
    return t.fields.get("response", "").strip()


def _may_teach(other: Example, e: Example) -> bool:
    "Return whether the detector of one reply may train on another reply"
    return (
        other.user_id != e.user_id and other.context_id != e.context_id and other.order <= e.order
    )
