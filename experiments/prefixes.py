"""Prefix chaining, `separate_generation` in the released code: one level after the best states.

The prompt asks for all levels. The best states of earlier steps already stand in the answer, and
the model writes one more level, which is rewarded. A state can become such a prefix if its score
reaches the `threshold` of its level. A better or newer state replaces it. Behind
configs/paper/prefix-chaining.yaml and results/transfer-controls.json. From the folder of this
repository:

    python -m humanlm.train --config configs/paper/prefix-chaining.yaml --data.path FOLDER
"""

import json
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from humanlm.alignment.modes import MODES, Mode
from humanlm.alignment.recipe import HumanLM
from humanlm.core.basics import atomic_write, to_json
from humanlm.core.records import Example
from humanlm.core.trajectory import Trajectory
from humanlm.hierarchy.levels import Hierarchy
from humanlm.hierarchy.prompts import HierarchyConfig, joint_row, target, token_cap


class Entry(NamedTuple):
    "A state that can be a prefix"

    level: str
    example: str  # its id
    field: str  # the text
    reward: float  # the judge's score, in [0, 1]
    step: int  # of training
    before: Sequence[Sequence[str]] = ()  # (level, text) of the levels that stood in its prompt


class PrefixMap:
    "The memory of prefix chaining: the best prefixes for prompts, and states with good scores"

    file = "prefixes.json"

    def __init__(
        self,
        hierarchy: Hierarchy,  # the levels in order, and their thresholds
        rows: Sequence[dict] = (),  # all training rows, from `next_row`
    ):
        self.hierarchy = hierarchy
        self.entries: dict[tuple[str, str], Entry] = {}  # (level, example) → the best one
        self.rows = {(row["level"], row["example_id"]): row for row in rows}
        self.examples = list(dict.fromkeys(row["example_id"] for row in rows))
        self.prefixes, self.moved = {}, 0.0  # of the rows of this step; share that was exchanged

    def offer(self, entry: Entry) -> bool:
        "Add an entry if it is good enough and beats the earlier one; return whether it was added"
        least, key = self.hierarchy[entry.level].threshold, (entry.level, entry.example)
        if least is None or not entry.field.strip() or not entry.reward >= least:  # nan is neither
            return False
        best = self.entries.get(key, entry)
        if (entry.reward, entry.step) < (best.reward, best.step):
            return False
        self.entries[key] = entry
        return True

    def choose(
        self,
        level: str,  # that is due
        example: str,  # whose turn it is
        taken: Container[tuple[str, str]] = (),  # (level, example) of this step so far
    ) -> tuple[str, str, tuple]:  # and (level, text) of the levels before
        "Choose a level, and an example with a prefix for it"
        at = self.hierarchy.index_of(level)
        if at == 0:
            return level, example, ()
        before, start = self.hierarchy.names[at - 1], self.examples.index(example)
        for other in self.examples[start:] + self.examples[:start]:
            best = self.entries.get((before, other))
            if best and (level, other) not in taken:
                return level, other, (*best.before, (before, best.field))
        return self.choose(before, example, taken)

    def prepare(self, rows: Sequence[dict]) -> list[dict]:
        "Add the prefix to each row, or take another row; equal rows stay equal"
        self.prefixes, chosen = {}, {}
        for row in {row["row_id"]: row for row in rows}.values():
            level, example, prefix = self.choose(row["level"], row["example_id"], self.prefixes)
            self.prefixes[level, example] = prefix
            prefixed = {"prefix": target(dict(prefix))} if prefix else {}
            chosen[row["row_id"]] = self.rows[level, example] | prefixed
        moved = [chosen[row["row_id"]]["row_id"] != row["row_id"] for row in rows]
        self.moved = sum(moved) / len(rows)
        return [chosen[row["row_id"]] for row in rows]

    def note(self, trajectories: Sequence[Trajectory]) -> list[Entry]:
        "Make an entry of every scored trajectory"
        entries = []
        for t in trajectories:
            if score := t.scores.get(t.level):
                before = self.prefixes.get((t.level, t.example_id), ())
                text = t.fields.get(t.level, "")
                entries.append(Entry(t.level, t.example_id, text, score.value, t.step, before))
        return entries

    def learn(self, notes: Sequence[Entry]) -> dict[str, float]:
        "Offer entries to the map; return its size by level and the share of replaced rows"
        for entry in notes:
            self.offer(entry)
        levels = [level for level, _ in self.entries]
        sizes = {f"prefixes/{n}": float(levels.count(n)) for n in self.hierarchy.names[:-1]}
        return sizes | {"prefixes/moved": self.moved}

    def save(self, path: str | Path) -> Path:
        "Write the map"
        return atomic_write(path, to_json([list(entry) for entry in self.entries.values()]))

    def load(self, path: str | Path) -> None:  # a file that `save` wrote
        "Read all entries from a file"
        entries = [Entry(*row) for row in json.loads(Path(path).read_text("utf-8"))]
        self.entries = {(entry.level, entry.example): entry for entry in entries}


def next_row(example: Example, config: HierarchyConfig, level: str) -> dict:
    "Ask for all levels in the prompt, but write one after the earlier levels"
    d, silent = config.load()[level], replace(config, thinking="off")
    row, thinking = joint_row(example, config, level), config.thinks(config.load().names[-1])
    return row | {
        "levels": (level,),
        "max_tokens": token_cap(d, silent) + config.thought_tokens * thinking,
        "before": sum(token_cap(config.load()[other], silent) for other in row["levels"][:-1]),
    }


MODES["prefix-chaining"] = Mode("up to", row=next_row, memory=PrefixMap)


class PrefixRecipe(HumanLM):
    "The recipe HumanLM with the mode prefix-chaining"


recipe = PrefixRecipe()
