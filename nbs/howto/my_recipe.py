"""A recipe of one's own: a tiny model learns to name animals.

humanlm train --run.recipe my_recipe:Animals
"""

from humanlm.evaluation.measured import Measurement
from humanlm.training.method import Method, TextReward, ask_row, group_advantage
from humanlm.training.recipe import Recipe, Stage, Work
from humanlm.training.rollouts import single_turn
from humanlm.training.run import learn

ANIMALS = ["cat", "dog", "hen", "owl"]
ROWS = [
    ask_row(f"What is the {word}?", word, max_tokens=6)
    for word in ("pet", "bird", "beast", "guest")
]


def animals(texts):
    return [sum(text.count(word) for word in ANIMALS) / 2 for text in texts]


class Animals(Recipe):
    def load(self, s, **given):
        return Work("four questions")

    def vocabulary(self, run):
        return [row["prompt"][0]["content"] for row in ROWS] * 9 + ANIMALS * 40, ANIMALS

    def stages(self, run):
        return [Stage("animals", "base", self.train)]

    def train(self, run, stage, model, tokenizer):
        learn(
            run,
            stage,
            model,
            tokenizer,
            Method(single_turn(), group_advantage([1.0]), TextReward(animals, "animals")),
            ROWS,
        )

    def evaluate(self, run, name):
        said = [answer.text for answer in run.answers(name, ROWS)]
        return [
            Measurement(row["row_id"], row["row_id"], {"animals": {"all": value}}, {"answer": text})
            for row, text, value in zip(ROWS, said, animals(said))
        ]

    def plan(self, s):
        return [f"questions           {len(ROWS)}, judged by counting animals"]
