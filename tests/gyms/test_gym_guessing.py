"""Telepathy, turtle, intention: rewards as published, holes that are shut, public rows."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from humanlm.core.basics import DataError, run_sync
from humanlm.gyms.intention import (
    _covered_pay,
    _IntentionEnvironment,
    _IntentionTask,
    _MissingDetail,
    intention,
)
from humanlm.gyms.protocol import ToolCall, play_through
from humanlm.gyms.telepathy import _StoryCriterion, _TelepathyTask, _TurtleTask, telepathy, turtle

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_rows = pytest.mark.skipif(
    not (DATA / "userrl").is_dir(), reason="set HUMANLM_DATA to a folder with userrl"
)
GYMS = {"telepathy": telepathy, "turtle": turtle, "intention": intention}

ABACUS = _TelepathyTask(
    "e", "Abacus", "Abacus - a counting frame with beads", "I am thinking of a tool.", "tool"
)
STORY = _TurtleTask(
    "s",
    "The lamp",
    "A keeper leaves the lamp dark and smiles.",
    "The sea was mined. Ships were warned by the dark lamp.",
    tuple(_StoryCriterion(f"Part {n}.", weight) for n, weight in enumerate((0.5, 0.2, 0.2, 0.1))),
)
ROOM = _IntentionTask(
    "i",
    "Help me to repaint a room.",
    "Home",
    (
        _MissingDetail("Extent", 3, "How large is it?", ("small", "vast")),
        _MissingDetail("Finish", 2, "Matte or glossy?", ("matte", "satin")),
        _MissingDetail("Ladder", 1, "Have you got a ladder?", ("borrowed", "none")),
        _MissingDetail("Pets", 1, "Which pets live there?", ("cat", "parrot")),
    ),
)


def says(**answers):
    "A user or judge who gives one answer after the other for each role, and keeps what it saw"
    left, seen = {role: iter(each) for role, each in answers.items()}, []

    async def who(env, role, payload):
        seen.append((role, payload))
        return next(left[role])

    who.seen = seen
    return who


def step(env, text):
    return run_sync(env.step(text))


def ask_for(*found, task=ROOM):
    "Play intention with a judge who finds these details, one list for each question"
    env = intention.play(task, judge=says(coverage=[{"covered": each} for each in found]))
    return env, [step(env, "[action] And?") for _ in found if not env.stop]


# Telepathy


def test_a_second_right_answer_is_impossible():
    env = telepathy.play(ABACUS)
    assert [step(env, f"[answer] {said}").reward for said in ("a loom", "the abacus")] == [
        0,
        1,
    ] and (env.stop, env.score) == ("done", 1)
    with pytest.raises(DataError, match="has ended"):
        step(env, "[answer] abacus")


def test_guesses_are_few_and_as_many_as_turns_where_published_numbers_ask_for_it():
    env = telepathy.play(ABACUS)
    assert [step(env, f"[answer] {n}").reward for n in range(3)] == [0, 0, 0] and (
        env.stop,
        env.score,
        len(env.turns),
    ) == ("done", 0, 3)
    env = telepathy.play(ABACUS, replace(telepathy.config, compat="userrl"))
    for n in range(15):
        step(env, f"[answer] {n}")
    assert step(env, "[answer] abacus").reward == 1


# Turtle


def test_marks_pay_by_weight_and_what_is_new():
    env = turtle.play(
        STORY,
        judge=says(
            marks=[
                {"scores": [1, 0.5, 0, 1]},
                {"scores": [0, 0, 0, 0]},
                {"scores": [1] * 4},
            ]
        ),
    )
    turns = [step(env, "[answer] A tale.") for _ in range(3)]
    assert (
        [turn.reward for turn in turns] == pytest.approx([0.7, 0, 0.3])
        and env.stop == "done"
        and env.score == pytest.approx(1)
    )
    assert turns[
        0
    ].feedback == "This much of it is right: Part 0. Part 3. Answers left: 2." and turns[
        0
    ].parts == {"story": pytest.approx(0.7)}


@pytest.mark.parametrize(
    "scores",
    [
        [1, 1, 1],
        [1] * 5,
        [],
        None,
        "1111",
        [1, 1, 1, math.inf],
    ],
)
def test_a_judge_whose_marks_cannot_be_read_scores_nothing(scores):
    env = turtle.play(STORY, judge=says(marks=[{"scores": scores}]))
    assert math.isnan(step(env, "[answer] A tale.").reward) and env.stop == "user_error"


def test_copies_lists_and_catalogues_of_words_do_not_pay():
    filler = "It was as it was, and there was more to it than anybody had thought of at the time."
    for task in turtle.tasks(50, 2):
        words, others = (
            [word for own, _ in task.wanted for word in own],
            [word for part in task.criteria for word in part.never],
        )
        for said in (
            f"{task.surface} {filler}",
            " ".join(words * 6),
            f"{filler} It was {', or the '.join(words + others)}.",
            " ".join(part.statement for part in task.criteria)[:40],
        ):
            assert step(turtle.play(task), ToolCall("answer", said)).reward == 0, said
        honest = f"{filler} {task.criteria[0].statement}"
        env = turtle.play(task)
        assert [step(env, ToolCall("answer", honest)).reward for _ in range(2)] == pytest.approx(
            [task.criteria[0].score, 0]
        )


# Intention


@pytest.mark.parametrize(
    "importances, paid",
    [([3], 1), ([2], 0.7), ([1], 0.4), ([3, 2], 0.8), ([2, 1, 1], 0.3), ([1, 1, 1], 0), ([], 0)],
)
def test_the_most_important_detail_pays_less_a_fifth_for_each_further_one(importances, paid):
    assert _covered_pay(importances) == pytest.approx(paid)
    task = _IntentionTask(
        "t",
        "Do it.",
        "",
        tuple(_MissingDetail(f"Detail {n}", each) for n, each in enumerate([*importances, 3])),
    )
    assert ask_for([*range(len(importances))], task=task)[1][0].reward == pytest.approx(paid)


def test_the_user_never_sees_what_was_not_asked():
    user, judge = (
        says(requester=[{"reply": "Well."}] * 3),
        says(coverage=[{"covered": []}, {"covered": [1]}, {"covered": [0, 2]}]),
    )
    env = intention.play(ROOM, user=user, judge=judge)
    for n in range(3):
        step(env, f"[action] Question {n}?")
    for (role, payload), asked in zip(user.seen, ([], [1], [0, 2])):
        told = repr(payload)
        assert role == "requester" and [wish["detail"] for wish in payload["wishes"]] == [
            ROOM.details[n].description for n in asked
        ]
        for n, detail in enumerate(ROOM.details):
            hidden = [
                detail.inquiry,
                *(
                    option
                    for option in detail.options
                    if n not in asked or option != ROOM.wish(n, 0)["wish"]
                ),
                *([] if n in asked else [detail.description]),
            ]
            assert not [text for text in hidden if text in told], (asked, detail)
    named = set(re.findall(r"\{(\w+)\}", _IntentionEnvironment.roles["requester"].instructions))
    assert named == {"request", "history", "question", "wishes"}


@pytest.mark.parametrize(
    "text",
    [
        "What else?",
        "Any details or preferences?",
        "Do you like jazz?",
        " ".join(f"word{n}" for n in range(99)) + " large matte ladder pets",
    ],
)
def test_vague_and_catch_all_questions_do_not_pay(text):
    turn = step(intention.play(ROOM), f"[action] {text}")
    assert turn.reward == 0 and not any(
        option in turn.feedback for detail in ROOM.details for option in detail.options
    )


# Public rows


def rows_of(name):
    return [
        json.loads(line)
        for line in (DATA / f"userrl/gym_{name}.jsonl").read_text("utf-8").splitlines()
    ]


@needs_rows
@pytest.mark.parametrize("name, count", [("telepathy", 360), ("turtle", 402), ("intention", 1012)])
def test_every_public_row_plays(name, count):
    gym, tasks = GYMS[name], [GYMS[name].read(row) for row in rows_of(name)]
    assert len({task.id for task in tasks}) == len(tasks) == count

    async def all_of_them():
        return [await play_through(gym.play(task), gym.expert) for task in tasks]

    played = run_sync(all_of_them())
    assert {env.stop for env in played} == {"done"}
    assert all(math.isclose(env.score, gym.best(env.task), abs_tol=1e-6) for env in played)
    assert not [
        task.id
        for task in tasks
        if any(secret in gym.system_prompt() + task.opening for secret in task.secrets if secret)
    ]
