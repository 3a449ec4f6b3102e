"""The symbolic simulator: questions, contexts and stories per CPU second; agreement with the slow
simulator; scores on Hi-ToM.

    nice -n -5 python bench/social.py
    nice -n -5 python bench/social.py --quick   # about 20 s (40 s on a busy machine): 1,000 and 100

Targets: 20,000 questions/s on parsed stories, 5,000/s when each row is parsed; 5,000 (ToMi) and
1,000 (Hi-ToM) contexts/s; no disagreement with the slow simulator. The second table has every
belief of orders 0-4, answers from memories alone and structural scores, by kind of story: each
column counts what was compared and, after the slash, what disagreed. "each row parsed" empties
the cache of sentences before every row, so that nothing is read twice for free; "with cache" is
the same rows as a run sees them; parsed stories have their world worked out, and each question
is read once. The peer is the slow simulator of `tests/replay.py`, which keeps every nested
belief of every person in tables: the ratio says how much the lazy form saves. With HUMANLM_DATA
set, the public half of Hi-ToM is measured and scored too.
"""

import argparse
import json
import os
import random
import statistics
from collections import Counter
from pathlib import Path

from common import Clock, in_turns, median_ratio, ratio
from replay import Replay, slow_answer

from humanlm.social.answers import answer, baselines, memory_answer, to_context
from humanlm.social.generation import TOMI_KINDS, _hitom_story, _tomi_story, generate
from humanlm.social.language import parse_sentence, read_question
from humanlm.social.memories import structural_score
from humanlm.social.world import read_story

DATA = Path(os.environ.get("HUMANLM_DATA", "/nowhere"), "hi_tom/hi_tom.jsonl")


def rows_of(tales):
    "Rows of a benchmark file: text and question"
    return [(tale.text, question.text) for tale in tales for question in tale.questions]


def cold(row):
    "Read story and question of a row, nothing cached, and answer"
    parse_sentence.cache_clear()
    read_question.cache_clear()
    return answer(read_story(row[0]), row[1])


def rate(f, items):
    def measure():
        read_question.cache_clear()
        with Clock() as clock:
            for item in items:
                f(item)
        return len(items) / clock.cpu

    return measure


def speed(name, rows, rounds):
    "Questions, contexts and replays per CPU second"
    texts = list(dict.fromkeys(text for text, _ in rows))
    stories = {text: read_story(text) for text in texts}
    for story in stories.values():
        _ = story.world
    parsed = [(stories[text], question) for text, question in rows]
    arms = {
        "questions, parsed": rate(lambda row: answer(*row), parsed),
        "questions, each row parsed": rate(cold, rows),
        "questions, with cache": rate(lambda row: answer(read_story(row[0]), row[1]), rows),
        "contexts": rate(to_context, list(stories.values())),
        "replays, fast": rate(lambda text: read_story(text).world, texts),
        "replays, slow": rate(
            lambda text: Replay([line.split(" ", 1)[1] for line in text.strip().split("\n")]), texts
        ),
    }
    if name == "Hi-ToM (public)":
        del arms["replays, slow"]  # written for generated stories only
    results = in_turns(arms, rounds)
    for arm, rates in results.items():
        print(f"{name:20}{arm:30}{statistics.median(rates):>12,.0f}/s")
    if "replays, slow" in results:
        times = ratio(
            f"replays, {name}",
            median_ratio(results["replays, fast"], results["replays, slow"]),
            "rate of the slow simulator",
        )
        print(f"{name:20}{'fast / slow replay':30}{times:>12.1f}")


def check(family, n):
    "Compare both simulators on fresh stories"
    with Clock() as clock:
        tales = list(generate(family, n, seed=2025))
    wrong = sum(
        slow != question.answer
        for tale in tales
        for slow, question in zip(slow_answer(tale), tale.questions)
    )
    count = sum(len(tale.questions) for tale in tales)
    print(
        f"{family:8}{n:>7,} stories, {n / clock.cpu:>6,.0f}/s{count:>8,} "
        f"questions{wrong:>4} disagreements"
    )
    return tales


def agreement(n):
    "Count what agrees in n stories of each kind"
    print(
        f"\n{'kind of story':44}{'stories':>8}{'order 0':>14}{'orders 1-4':>16}"
        f"{'memories':>14}{'structure':>12}"
    )
    kinds = {f"tomi, {kind}": (_tomi_story, kind) for kind in TOMI_KINDS}
    for tell in (False, True):
        for k in (1, 2, 3):
            kinds[f"hitom, length {k}, {'talk' if tell else 'no talk'}"] = _hitom_story, k, tell
    for name, (make, *kind) in kinds.items():
        columns = [Counter() for _ in range(4)]
        for i in range(n):
            tale = make(random.Random(f"{name} {i}"), *kind)
            for column, matches in zip(columns, compared(tale)):
                column.update(matches)
        cells = [f"{column.total():,}/{column[False]}" for column in columns]
        print(f"{name:44}{n:>8,}{cells[0]:>14}{cells[1]:>16}{cells[2]:>14}{cells[3]:>12}")


def compared(tale):
    "True or False for each comparison of one story, in four lists"
    world, context, replay = tale.story.world, to_context(tale.story), Replay(tale.sentences)
    questions = [(read_question(a.text), a.answer) for a in tale.questions]
    return (
        [
            world.where(thing) == replay.spot[thing]
            and world.start.get(thing) == replay.begin[thing]
            for thing in world.log
        ],
        [world.belief(*key) == place for key, place in replay.held.items()],
        [memory_answer(context, q.chain, q.object) == place for q, place in questions if q.chain],
        [structural_score(context) == 1],
    )


def scores(rows):
    "Right answers by half of the file, policy and order"
    print(f"\n{'Hi-ToM, public half':46}{'all':>10}{'order 0':>9}{'1':>6}{'2':>6}{'3':>6}{'4':>6}")
    policies = {
        "simulator": lambda story, text: answer(story, text).text,
        "simulator, faults emulated": lambda story, text: answer(story, text, "as_shipped").text,
    }
    policies |= {
        name: lambda story, text, rule=rule: rule(story.world, read_question(text))
        for name, rule in baselines.items()
    }
    for kind in ("CoTP", "VP"):
        half = [(read_story(row["story"]), row) for row in rows if row["prompting_type"] == kind]
        total = Counter(row["question_order"] for _, row in half)
        for name, policy in policies.items():
            right = Counter(
                row["question_order"]
                for story, row in half
                if policy(story, row["question"]) == row["answer"]
            )
            print(
                f"{kind:6}{name:40}{right.total():>4}/{len(half):<5}"
                + "".join(f"{100 * right[k] / total[k]:>6.1f}" for k in range(5))
            )
    print(f"chance {100 / 15:.1f} % (15 choices)")


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--quick", action="store_true")
    quick = args.parse_args().quick
    n, rounds = (1000, 3) if quick else (10_000, 5)
    tomi, hitom = check("tomi", n), check("hitom", n)
    agreement(n // 10)
    speed("ToMi (generated)", rows_of(tomi[:500]), rounds)
    speed("Hi-ToM (generated)", rows_of(hitom[:300]), rounds)
    if DATA.exists():
        public = [json.loads(line) for line in DATA.read_text().splitlines()]
        speed("Hi-ToM (public)", [(row["story"], row["question"]) for row in public], rounds)
        scores(public)
