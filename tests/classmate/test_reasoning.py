"Reasoning is found in tokens where it stands in the text, however marks are cut into tokens."

import random
from itertools import accumulate

import pytest

from humanlm.classmate.reasoning import (
    END_MARK,
    START_MARK,
    ReasoningReader,
    shown_part,
    text_span,
)

SPEC = ["<think>", " a", " b", " c", " d", "</think>", " out", " put", "a", "b", "c"]


class Pieces(ReasoningReader):
    def __init__(self, pieces):
        self.pieces = pieces


def read(row):
    return Pieces(SPEC)([SPEC.index(piece) for piece in row])


@pytest.mark.parametrize(
    "row, keep, text, mask",
    [
        (SPEC[:8], "1", " a b c d", "01111000"),
        (SPEC[:8], "0.5", " a b", "01100000"),
        (SPEC[:8], "last-2-tokens", " c d", "00011000"),
        (["a", " b", " c", "</think>", " out"], "first-3-tokens", "a b c", "11100"),
        (SPEC[:5], "1", " a b c d", "01111"),
        (["a", " b", " c"], "0.5", "a", "100"),
    ],
)
def test_the_fixtures_of_the_spec(row, keep, text, mask):
    span = read(row)
    own = row[span.start : span.stop]
    start, stop = shown_part(keep, len(own))
    assert "".join(own[start:stop]) == text
    assert [int(span.start + start <= t < span.start + stop) for t in range(len(row))] == list(
        map(int, mask)
    )


def test_tokens_and_letters_agree_however_marks_are_cut():
    rng, marks = random.Random(0), (START_MARK, END_MARK)
    letters = sorted({*START_MARK, *END_MARK, "\n", " ", "x", "."})
    bits = [
        *(
            mark[a:b]
            for mark in marks
            for a, b in [sorted(rng.sample(range(len(mark) + 1), 2)) for _ in range(12)]
        ),
        START_MARK,
        END_MARK + "\n\n",
        END_MARK,
        START_MARK + END_MARK,
    ]
    pieces = [*letters, *dict.fromkeys(bits), ""]
    reader = Pieces(pieces)
    rows = [[rng.randrange(len(pieces) - 1) for _ in range(rng.randrange(30))] for _ in range(400)]
    for row in rows:
        span, own = reader(row), [pieces[j] for j in row]
        wanted, starts = text_span("".join(own)), [0, *accumulate(map(len, own))]
        held = [
            t
            for t in range(len(own))
            if max(wanted.start, starts[t]) < min(wanted.stop, starts[t + 1])
        ]
        assert list(range(span.start, span.stop)) == held and (
            span.opened,
            span.closed,
        ) == (wanted.opened, wanted.closed), (own, span, wanted)
        said = [t for t in range(len(own)) if starts[t + 1] > wanted.output]
        assert list(range(span.output, len(own))) == said
