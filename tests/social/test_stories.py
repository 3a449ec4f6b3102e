"""Generated stories: seeds, files, and agreement with a second simulator that shares no code."""

from collections import Counter

import pytest
from replay import Replay, slow_answer

from humanlm.core.basics import read_jsonl
from humanlm.social.answers import answer, memory_answer, to_context
from humanlm.social.generation import generate, read_tomi, write_stories
from humanlm.social.language import read_question
from humanlm.social.world import read_story


def wrong(tales):
    "The questions on which both simulators differ"
    return [
        (tale.text, asked, slow)
        for tale in tales
        for asked, slow in zip(tale.questions, slow_answer(tale))
        if asked.answer != slow
    ]


@pytest.fixture(scope="module")
def tomi():
    return list(generate("tomi", 1000, seed=11))


@pytest.fixture(scope="module")
def hitom():
    return list(generate("hitom", 1000, seed=11))


@pytest.fixture(scope="module")
def quiet():
    return [tale for tale in generate("hitom", 800, 12) if tale.kind.endswith("no tell")]


def chains(people, depth):
    "All chains of thought up to a length, without equal neighbours"
    found = [(name,) for name in people]
    for chain in found:
        if len(chain) < depth:
            found += [(*chain, name) for name in people if name != chain[-1]]
    return found


# ---- the two simulators (11.1.9)


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_second_simulator_agrees(family, request):
    assert wrong(request.getfixturevalue(family)) == []


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_eager_and_lazy_beliefs_agree_up_to_the_fourth_order(family, request):
    for tale in request.getfixturevalue(family)[:250]:
        world, replay = tale.story.world, Replay(tale.sentences)
        held = {
            (chain, thing): world.belief(chain, thing)
            for thing in world.log
            for chain in chains(world.agents, 4)
        }
        assert {key: place for key, place in held.items() if place} == replay.held, tale.text
        assert (world.inside, world.start) == (replay.spot, replay.begin) and not tale.story.unknown


def test_memories_answer_like_the_simulator(tomi, quiet):
    orders = Counter()
    for tale in (*tomi[:400], *quiet):
        record = to_context(tale.story)
        for asked in tale.questions:
            question = read_question(asked.text)
            orders[question.order] += 1
            assert (
                not question.chain
                or memory_answer(record, question.chain, question.object) == asked.answer
            ), (tale.text, asked)
    assert len(quiet) == 400 and min(orders[order] for order in range(5)) > 360


# ---- generators


def test_the_seed_does_not_depend_on_the_process(tomi):
    import subprocess
    import sys

    code = (
        "from humanlm.social.generation import generate; "
        "print([t.text for f in ('tomi', 'hitom') for t in generate(f, 3, seed=2)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# ---- files


def test_tomi_files_come_back(tmp_path, tomi):
    write_stories("tomi", 50, 11, tmp_path / "own.txt")
    assert read_tomi(tmp_path / "own.txt") == tomi[:50]
    text, trace = (
        (tmp_path / "own.txt").read_text().splitlines(),
        (tmp_path / "own.trace").read_text().splitlines(),
    )
    assert (
        len(trace) == 300
        and text[0].startswith("1 ")
        and text[len(tomi[0].sentences)].endswith("\t1")
    )
    assert trace[0].split(",")[-2:] == ["memory", tomi[0].kind]


def test_hitom_rows_are_like_the_published_ones(tmp_path):
    write_stories("hitom", 6, 11, tmp_path / "own.jsonl")
    rows = read_jsonl(tmp_path / "own.jsonl")
    assert [row["sample_id"] for row in rows] == list(range(30))
    for row in rows:
        assert (
            row["story"].startswith("1 ")
            and row["choices"].startswith("A. ")
            and row["choices"].count(", ") == 14
        )
        assert f". {row['answer']}" in row["choices"]
        assert answer(read_story(row["story"]), row["question"]).text == row["answer"]
    assert {(row["story_length"], row["deception"]) for row in rows} == {
        (n, t) for n in (1, 2, 3) for t in (False, True)
    }
