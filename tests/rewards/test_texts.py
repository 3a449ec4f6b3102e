"""Likeness of texts: against independent implementations, at the edges, on hostile input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.models.embeddings import has_minilm, minilm_folder
from humanlm.rewards.texts import (
    _bleu,
    _edit_similarity,
    text_scores,
)

TEXT = st.text(max_size=30)


def distance(a: str, b: str) -> int:
    "Levenshtein by its recursive definition, as a table"
    d = np.arange(len(b) + 1)
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(d[j] + 1, new[-1] + 1, d[j - 1] + (x != y)))
        d = np.array(new)
    return int(d[-1])


def sentence_bleu(text: str, truth: str) -> float:
    "BLEU as published: n = min(4, lengths), weights 1/n, zero counts become 0.1"
    a, b = text.split(), truth.split()
    logs = []
    for n in range(1, min(4, len(a), len(b)) + 1):
        grams, wanted = ([tuple(t[i : i + n]) for i in range(len(t) - n + 1)] for t in (a, b))
        hits = sum(min(grams.count(g), wanted.count(g)) for g in set(grams))
        if n == 1 and hits == 0:
            return 0.0
        logs.append(math.log((hits or 0.1) / len(grams)))
    return math.exp(sum(logs) / len(logs)) * min(1.0, math.exp(1 - len(b) / len(a)))


@settings(max_examples=50, deadline=None)
@given(TEXT, TEXT)
def test_edit_similarity_is_the_normalised_distance(a, b):
    a, b = a.strip(), b.strip()
    wanted = 1.0 if a == b else 1 - distance(a, b) / max(len(a), len(b))
    assert _edit_similarity([a], [b])[0] == pytest.approx(wanted)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=12),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=12),
)
def test_bleu_is_the_published_definition(a, b):
    assert _bleu([" ".join(a)], [" ".join(b)])[0] == pytest.approx(
        sentence_bleu(" ".join(a), " ".join(b)), abs=1e-9
    )


@pytest.mark.skipif(
    not has_minilm(), reason="the small sentence model is not installed (requirements-models.txt)"
)
def test_embeddings_of_a_folder_and_by_name_agree():
    a, b = ["I like trams", "no"], ["Trams are nice", "yes"]
    folder = text_scores(f"embedding/{minilm_folder()}", a, b)
    assert (
        folder == pytest.approx(text_scores("embedding/minilm", a, b), abs=1e-6)
        and folder[0] > folder[1]
    )


@pytest.mark.skipif(
    not has_minilm(), reason="the small sentence model is not installed (requirements-models.txt)"
)
def test_bertscore_of_any_encoder():
    pytest.importorskip("bert_score", reason="needs bert-score: pip install -e '.[texts]'")
    same, near, far, empty = text_scores(
        f"bertscore/{minilm_folder()}",
        ["a fine plan", "a good plan", "my cat", ""],
        ["a fine plan"] * 4,
    )
    assert same == pytest.approx(1, abs=1e-5) and same > near > far and empty == 0
