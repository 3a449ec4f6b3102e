"""Generated stories: seeds, files, and agreement with a second simulator that shares no code."""

import json
import random
from collections import Counter
from itertools import islice

import pytest
from replay import Replay, slow_answer

from humanlm.social.answers import answer, memory_answer, to_context
from humanlm.social.generation import (
    PLANS,
    TOMI_KINDS,
    StoryQuestion,
    Tale,
    generate,
    hitom_rows,
    hitom_story,
    read_tomi,
    write_tomi,
)
from humanlm.social.language import read_question
from humanlm.social.memories import perspective, structural_score
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
    return [hitom_story(random.Random(f"quiet {i}"), 1 + i % 3) for i in range(400)]


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


def walk(rng, steps=25):
    "Four people stroll through three rooms and move three objects"
    names, rooms = ["Ada", "Ben", "Cleo", "Dan"], ["barn", "loft", "mill"]
    boxes, inside, place, lines = (
        {room: [f"{room} {box}" for box in ("bin", "jar", "net")] for room in rooms},
        {},
        {},
        [],
    )
    for _ in range(steps):
        name = rng.choice(names)
        room, here = place.get(name), rng.choice(rooms)
        if not room or rng.random() < 0.2:
            group = [
                name,
                *(n for n in names if n != name and not place.get(n) and rng.random() < 0.3),
            ]
            group = [n for n in group if place.get(n) != here]
            if group:
                place |= dict.fromkeys(group, here)
                who = ", ".join(group[:-1]) + " and " + group[-1] if group[1:] else group[0]
                lines.append(f"{who} entered the {here}.")
        elif room not in inside:
            inside[room] = boxes[room][0]
            lines += [
                f"The {room} key is in the {boxes[room][0]}.",
                f"The {boxes[room][0]} is in the {room}.",
            ]
        elif rng.random() < 0.4:
            lines.append(f"{name} exited the {room}.")
            place[name] = ""
        else:
            lines.append(f"{name} moved the {room} key to the {rng.choice(boxes[room])}.")
    return Tale("walk", tuple(lines))


@pytest.mark.parametrize("seed", range(20))
def test_both_simulators_agree_on_free_walks(seed):
    tale = walk(random.Random(seed))
    world, found = tale.story.world, Replay(tale.sentences, 3).held
    assert not tale.story.unknown
    for (chain, thing), place in found.items():
        assert world.belief(chain, thing) == place, (tale.text, chain, thing)
    record = to_context(tale.story)
    for thing in world.log:
        for a in world.agents:
            for chain in (
                (a,),
                *((a, b) for b in world.agents if b != a),
                *((a, b, a) for b in world.agents if b != a),
            ):
                assert (
                    world.belief(chain, thing)
                    == found.get((chain, thing))
                    == memory_answer(record, chain, thing)
                ), (tale.text, chain)


def test_contexts_of_generated_stories_are_well_formed(tomi, hitom):
    assert {len(tomi), len(hitom)} == {1000}
    for tale in (*tomi, *hitom):
        assert structural_score(to_context(tale.story)) == 1


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


def test_memories_answer_like_the_simulator_where_people_talk(hitom):
    for tale in hitom[1:120:2]:
        record = to_context(tale.story)
        for asked in tale.questions[1:]:
            question = read_question(asked.text)
            assert memory_answer(record, question.chain, question.object) == asked.answer, (
                tale.text,
                asked,
            )


def test_perspective_equals_joint_witnessing(quiet):
    for tale in quiet[:40]:
        record = to_context(tale.story)
        for asked in tale.questions[2:]:
            question = read_question(asked.text)
            assert (
                memory_answer(
                    perspective(record, question.chain), question.chain[-1:], question.object
                )
                == asked.answer
            )


# ---- generators


def test_seeds_fix_everything(tomi):
    assert list(islice(generate("tomi", 10**9, seed=11), 5)) == tomi[:5]
    assert next(generate("tomi", 1, seed=12)) != tomi[0]
    assert hitom_story(random.Random(4), 3, True) == hitom_story(random.Random(4), 3, True)


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


def test_kinds_have_quotas(tomi, hitom):
    assert (
        max(Counter(t.kind for t in tomi).values()) - min(Counter(t.kind for t in tomi).values())
        <= 1
    )
    assert set(Counter(t.kind for t in tomi)) == set(TOMI_KINDS)
    assert len({t.kind for t in hitom}) == 6 and max(Counter(t.kind for t in hitom).values()) <= 167


def test_tomi_stories_look_like_tomi(tomi):
    assert (
        {len(t.questions) for t in tomi} == {6}
        and min(len(t.sentences) for t in tomi) >= 7
        and max(len(t.sentences) for t in tomi) <= 14
    )
    kinds = Counter(a.kind for t in tomi for a in t.questions)
    assert kinds["memory"] == kinds["reality"] == 1000
    assert kinds.keys() - {
        "memory",
        "reality",
    } == {  # the mover always knows where the object is: no first_order_0_tom
        "first_order_0_no_tom",
        "first_order_1_tom",
        "first_order_1_no_tom",
        "second_order_0_tom",
        "second_order_0_no_tom",
        "second_order_1_tom",
        "second_order_1_no_tom",
    }
    assert Counter(tag for t in tomi for tag in t.trace).keys() == {
        "enter_agent_0",
        "enter_agent_1",
        "agent_0_moves_obj",
        "agent_0_exits",
        "agent_1_exits",
        "agent_1_reenters_loc",
        "agent_1_reenters_alt_loc",
        "agent_2_enters",
        "agent_2_exits",
    }


@pytest.mark.parametrize("length", PLANS)
def test_hitom_stories_have_the_planned_chapters(length):
    for tells in (False, True):
        tale = hitom_story(random.Random(length), length, tells)
        groups = [
            e.agents for e in tale.story.events if e.kind == "enter" and e.place != "waiting_room"
        ]
        assert [len(group) for group in groups] == [n for n, _ in PLANS[length]]
        assert (sum(e.kind in ("claim", "tell") for e in tale.story.events) > 0) == tells
        assert len(tale.choices) == len(set(tale.choices)) == 15 and [
            a.kind for a in tale.questions
        ] == [f"order_{k}" for k in range(5)]


def test_what_outsiders_are_told_is_true_in_chapters_of_three_and_four():
    told = 0
    for tale in (hitom_story(random.Random(i), 2 + i % 2, True) for i in range(150)):
        world = tale.story.new_world()
        for event in tale.story.events:
            world.step(event)
            if event.kind == "tell" and event.listener not in world.exits:
                told += 1
                assert event.container == world.where(event.object)
    assert told > 50


# ---- files


def test_tomi_files_come_back(tmp_path, tomi):
    write_tomi(tmp_path / "own.txt", tomi[:50])
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


def test_tomi_files_without_trace(tmp_path, tomi):
    write_tomi(tmp_path / "own.txt", tomi[:3])
    (tmp_path / "own.trace").unlink()
    found = read_tomi(tmp_path / "own.txt")
    assert [(t.sentences, [a[:2] for a in t.questions], t.kind) for t in found] == [
        (t.sentences, [a[:2] for a in t.questions], "") for t in tomi[:3]
    ]


def test_published_form_of_a_tomi_block(tmp_path):
    block = (
        "1 Ira entered the barn.\n2 The rope is in the crate.\n3 The crate is in the barn.\n"
        "4 Where is the rope really?\tcrate\t1\n"
    )
    (tmp_path / "x.txt").write_text(
        block + block.replace("Ira", "Tom").replace("really", "now") + "\n"
    )
    first, second = read_tomi(tmp_path / "x.txt")
    assert first.sentences[0] == "Ira entered the barn." and second.questions == (
        StoryQuestion("Where is the rope now?", "crate", ""),
    )
    assert answer(second.story, second.questions[0].text).text == "crate"


def test_hitom_rows_are_like_the_published_ones(hitom):
    rows = [row for n, tale in enumerate(hitom[:6]) for row in hitom_rows(tale, n)]
    assert [row["sample_id"] for row in rows] == list(range(30)) and json.loads(
        json.dumps(rows)
    ) == rows
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
