"""What is right for a question reaches neither its groups nor the baselines' answer to it."""

import random

import pytest
from fantom_rows import fantom_set

from humanlm.tom.answers import chance
from humanlm.tom.sets import benchmarks

# ---- rows in the format of each set, and the same rows with other labels


def tomi(n, draw):
    places = draw.sample(["crate", "sack", "tin", "jar"], 2)
    return {
        "index": str(n),
        "set_id": f"s{n // 2}",
        "story": f"Ira sat. The rope is in the {places[0]}.",
        "question": f"Where {draw.choice(['will Ira look for', 'was', 'is'])} the rope?",
        "cands": places,
        "correct_answer": draw.choice(places),
        "qTypeRaw": draw.choice(["first_order_0_tom", "first_order_1_no_tom"]),
        "story_type": "true_belief",
    }


def hitom(n, draw):
    return {
        "sample_id": n,
        "deception": bool(n % 2),
        "story_length": 1,
        "question_order": n % 5,
        "story": f"Ira sat down {n // 5}.",
        "question": "Where is the pen really?",
        "choices": "A. jar, B. box, C. tin",
        "answer": draw.choice(["jar", "box", "tin"]),
    }


def confaide(n, draw):
    return {
        "index": str(n),
        "tier": "4",
        "head": "a gift, June 3rd",
        "text": "Ada: A gift comes June 3rd.\n(Bo joins)\nBo: Hi.<END>",
    }


def cobra(n, draw):
    return {
        "index": str(n),
        "context": f"At work {n}.",
        "speaker": "Ana",
        "listener": "Bo",
        "statement": "Hi",
        "offensive_allapp": draw.randint(0, 1),
    }


def mmtom(n, draw):
    return {
        "index": str(n),
        "question": f"room {n // 3} Question: w (a) crate (b) sack",
        "answer": draw.choice("ab"),
        "question_type": draw.choice([1.1, 2.1]),
        "episode": n // 3,
    }


MAKE = {
    "tomi": tomi,
    "paratomi": tomi,
    "fantom": fantom_set,
    "hitom": hitom,
    "confaide": confaide,
    "cobra": cobra,
    "mmtom": mmtom,
}


def other(value, values):
    return next(v for v in values if v != value)


def fantom_other(row):
    "Whoever knew does not, and the other way round; who is in the long conversation only stays so"
    turn = {"yes": "no", "no": "yes"}

    def qa(q):
        kind = q["question_type"]
        if kind.endswith("binary"):
            return q | {"correct_answer": turn.get(q["correct_answer"], q["correct_answer"])}
        if kind == "fact":
            return q | {"correct_answer": "to stay"}
        right, wrong = q["correct_answer"], q["wrong_answer"]
        return (
            q | {"correct_answer": wrong, "wrong_answer": right}
            if wrong
            else q | {"correct_answer": right[:-1], "wrong_answer": right[-1:]}
        )

    return {
        key: qa(value)
        if isinstance(value, dict)
        else [qa(q) for q in value]
        if isinstance(value, list)
        else value
        for key, value in row.items()
    }


def hitom_other(row):
    return row | {
        "answer": other(row["answer"], [c.split(". ")[1] for c in row["choices"].split(", ")])
    }


OTHER = {
    "tomi": lambda row: row | {"correct_answer": other(row["correct_answer"], row["cands"])},
    "fantom": fantom_other,
    "hitom": hitom_other,
    "confaide": lambda row: row | {"head": ", ".join(reversed(row["head"].split(",")))},
    "cobra": lambda row: row | {"offensive_allapp": 1 - row["offensive_allapp"]},
    "mmtom": lambda row: row | {"answer": other(row["answer"], "ab")},
}
OTHER["paratomi"] = OTHER["tomi"]
LABELLED = {
    "answer",
    "wrong",
    "public",
    "private",
}  # facts that say what is right


# ---- what may not depend on labels


def items_of(benchmark, rows, **options):
    return [
        item
        for n, row in enumerate(rows)
        for item in benchmark.items({"index": str(n), **row}, **benchmark.checked(options))
    ]


def groups(items):
    "All that a report can count a question under"
    return {
        item.id: (
            item.set_id,
            item.kind,
            dict(item.groups),
            {name: fact for name, fact in item.facts.items() if name not in LABELLED},
        )
        for item in items
    }


def answers(benchmark, items):
    "What each baseline says to each question"
    return {"chance": {o.id: o.scores for o in chance(benchmark, items)}}


def leaks(benchmark, rows, other, asked, **options):
    "Groups, then baselines, in which a label shows"
    items = items_of(benchmark, rows, **options)
    before, said = groups(items), answers(benchmark, items)
    found = {
        "groups"
        for draw in (random.Random(1), None)
        if groups(
            items_of(
                benchmark,
                [other(row) if draw is None or draw.random() < 0.5 else row for row in rows],
                **options,
            )
        )
        != before
    }
    for n in asked:
        own = [item.id for item in items_of(benchmark, [{"index": str(n)} | rows[n]], **options)]
        after = answers(
            benchmark, items_of(benchmark, [*rows[:n], other(rows[n]), *rows[n + 1 :]], **options)
        )
        found |= {
            name for name, told in said.items() for id in own if after[name].get(id) != told.get(id)
        }
    return found


def changed(benchmark, rows, other, **options):
    "Whether another label is one"

    def right(rows):
        return [
            (item.gold, item.options, item.facts) for item in items_of(benchmark, rows, **options)
        ]

    return all(right([row]) != right([other(row)]) for row in rows)


CASES = [(name, options) for name in benchmarks for options in [{}]]


@pytest.mark.parametrize(
    "name, options",
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_no_group_and_no_baseline_of_a_set_knows_what_is_right(name, options):
    draw = random.Random(0)
    rows = [MAKE[name](n, draw) for n in range(24)]
    if (
        name == "fantom"
    ):  # as published: who is only in the long conversation is not in the short one
        rows = [
            row | {"short_context": "Ana: Hi.\nBo: Hi.", "full_context": "Ed: Hi.\nAna: Hi."}
            for row in rows
        ]
    assert changed(benchmarks[name], rows, OTHER[name], **options)
    assert leaks(benchmarks[name], rows, OTHER[name], range(len(rows)), **options) == set()
