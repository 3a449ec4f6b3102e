"""Pairs of a text and its context: what is read and kept, how it is split, what trainers get."""

import json
import math
import random
from statistics import fmean

import pytest

from humanlm.core.basics import run_sync
from humanlm.evaluation.measured import score_table
from humanlm.social.generation import FAMILIES, write_stories
from humanlm.social.parsing import parser
from humanlm.social.quality import evaluate_folders
from humanlm.social.recipe import (
    _fresh_pairs,
    _known_stories,
    _split_pairs,
    examine,
    read_pairs,
)
from humanlm.social.world import read_story
from humanlm.tom.sets import benchmarks

PAIRS = list(_fresh_pairs("tomi", 60, seed=7))


def same(a, b):
    return [(p.text, p.target) for p in a] == [(p.text, p.target) for p in b]


def stories(pairs):
    return {pair.story for pair in pairs}


def result(pair, **more) -> dict:
    "A result file as published programs write them"
    return {
        "story": pair.text,
        "question": "Where?",
        "answer": "wrong",
        "socialized_context": pair.context.model_dump(),
        **more,
    }


def test_a_published_story_is_a_list_of_sentences_and_is_learnt_as_a_text(tmp_path):
    for i, pair in enumerate(PAIRS):
        sentences = [f"{s}." for s in read_story(pair.text).sentences]
        published = sentences if i else [s.removesuffix(".") for s in sentences]
        row = result(pair, story=str(published), reasoning="", is_correct=True, extra_info="")
        (tmp_path / f"{i:02}.json").write_text(json.dumps(row, indent=2))
    pairs, _ = read_pairs(tmp_path)
    assert same(pairs, PAIRS)
    scores = score_table(examine(parser("symbolic"), _known_stories(tmp_path)))
    assert fmean(scores["memory"]["story"]) == fmean(scores["f1"]["story"]) == 1.0
    ratings = run_sync(evaluate_folders(tmp_path, tmp_path))
    assert {row.shown["method"] for row in ratings} == {"exact"}
    assert {row.values["overall"]["record"] for row in ratings} == {1.0}


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_a_model_learns_from_texts_as_its_benchmark_gives_them(family, tmp_path):
    path = tmp_path / FAMILIES[family]
    write_stories(family, 6, 3, path)
    exam = benchmarks[family]
    asked = dict.fromkeys(item.source for item in exam.load(path).items)
    assert list(asked) == [pair.text for pair in _fresh_pairs(family, 6, seed=3)]


def test_split_is_by_story_and_does_not_depend_on_the_order_of_input(seed=0):
    asked_often = [
        pair._replace(text=f"{text}", name=f"{pair.name} {n}")
        for pair in PAIRS
        for n, text in enumerate(
            (
                pair.text,
                "\n".join(
                    f"{i} {line}" for i, line in enumerate(read_story(pair.text).sentences, 1)
                ),
            )
        )
    ]
    train, held = _split_pairs(asked_often, 0.2, seed)
    assert not stories(train) & stories(held) and len(stories(held)) == math.ceil(
        len(stories(PAIRS)) * 0.2
    )
    random.Random(seed).shuffle(asked_often)
    again = _split_pairs(asked_often, 0.2, seed)
    assert same(train, again[0]) and same(held, again[1])
