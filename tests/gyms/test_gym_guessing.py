"""Telepathy, turtle, intention: rewards as published, holes that are shut, public rows."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import DataError, run_sync
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.intention import (
    _covered_pay,
    _IntentionEnvironment,
    _IntentionTask,
    _MissingDetail,
    intention,
)
from humanlm.gyms.protocol import Environment, ToolCall, find_gym, play_through
from humanlm.gyms.telepathy import _TelepathyTask, telepathy
from humanlm.gyms.turtle import _StoryCriterion, _TurtleTask, turtle
from humanlm.gyms.users import ModelUser

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


@pytest.mark.parametrize("name", GYMS)
def test_every_gym_holds_what_gyms_must(name):
    gym = GYMS[name]
    assert find_gym(f"interact_{name}gym") is find_gym(name) and find_gym(name).name == gym.name
    assert run_sync(gym_problems(gym, odd=1000)) == []


# Telepathy


def test_a_second_right_answer_is_impossible():
    env = telepathy.play(ABACUS)
    assert [step(env, f"[answer] {said}").reward for said in ("a loom", "the abacus")] == [
        0,
        1,
    ] and (env.stop, env.score) == ("done", 1)
    with pytest.raises(DataError, match="has ended"):
        step(env, "[answer] abacus")


@pytest.mark.parametrize("said, score", [("yes", 1), (" YES ", 1), ("no", 0)])
def test_verdicts_count_however_they_are_spelt(said, score):
    assert (
        step(
            telepathy.play(ABACUS, judge=says(guess=[{"judgment": said}])), "[answer] abacus"
        ).reward
        == score
    )


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


def test_who_answers_is_told_what_was_said_before_and_no_more_than_the_target():
    user = says(answerer=[{"response": "Yes"}, {"response": "maybe"}])
    env = telepathy.play(ABACUS, user=user)
    for text in ("[action] Is it old?", "no call", "[action] Is it new?"):
        step(env, text)
    assert [payload["history"] for _, payload in user.seen] == [
        [],
        [{"role": "assistant", "content": "Is it old?"}, {"role": "user", "content": "Yes."}],
    ] and env.turns[-1].feedback == "Maybe."


def test_answers_by_rule_follow_from_words():
    def said(question, task=ABACUS):
        return telepathy.play(task).rule_answerer(question)["response"]

    for question, answer in {
        "Does it have beads?": "Yes",
        "Is it a plant or a tool?": "Yes",
        "Is it expensive?": "Maybe",
        "Isn't it a tool?": "Yes",
        "Is it?": "Maybe",
        "": "Maybe",
    }.items():
        assert said(question) == answer, question
    for task in telepathy.tasks(20, 3):
        assert {said(f"Is it {word}?", task) for word in task.never} == {"No"} and {
            said(f"Is it {word}?", task) for word in task.title.split()
        } == {"Yes"}


def test_hacking_by_going_through_all_stories_ends_after_three_answers():
    for compat, answers in (("", 3), ("userrl", 16)):
        env = turtle.play(turtle.tasks(1, 3)[0], replace(turtle.config, compat=compat))
        while not env.stop:
            step(
                env,
                "[answer] Behind it all is this, and that is the whole of what was "
                "there to be told about it: the aunt hid a ring because of envy.",
            )
        assert len(env.turns) == answers and env.stop == ("turn_limit" if compat else "done")


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
    "scores, paid",
    [([5, 0, 0, 0], 0.5), ([-3, 0.6, 0.8, 0], 0.3)],
)
def test_marks_are_brought_to_the_three_values(scores, paid):
    assert step(
        turtle.play(STORY, judge=says(marks=[{"scores": scores}])), "[answer] A tale."
    ).reward == pytest.approx(paid)


@pytest.mark.parametrize(
    "scores",
    [
        [1, 1, 1],
        [1] * 5,
        [],
        None,
        "1111",
        [1, 1, 1, math.nan],
        [1, 1, 1, math.inf],
        [1, 1, 1, None],
        [1, 1, 1, {}],
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


def test_a_detail_counts_once():
    env, turns = ask_for([0, 0, 0], [0], [1, 99, -1])
    assert (
        [turn.reward for turn in turns] == pytest.approx([1, 0, 0.7])
        and env.left == [2, 3]
        and env.stop == ""
    )
    assert ask_for([0], [1], [2], [3])[0].stop == "done"


def test_the_user_never_sees_what_was_not_asked():
    user, judge = (
        says(requester=[{"response": "Well."}] * 3),
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
        "room",
        "Is anything missing?",
        " ".join(f"word{n}" for n in range(99)) + " large matte ladder pets",
    ],
)
def test_vague_and_catch_all_questions_do_not_pay(text):
    turn = step(intention.play(ROOM), f"[action] {text}")
    assert turn.reward == 0 and not any(
        option in turn.feedback for detail in ROOM.details for option in detail.options
    )


# Chat models in the roles


@pytest.mark.parametrize(
    "task, calls, replies, scores",
    [
        (
            ABACUS,
            ["[action] Is it old?", "[answer] abacus"],
            ['{"response": "yes"}', '```json\n{"judgment": "Yes"}\n```'],
            [0, 1],
        ),
        (
            STORY,
            ["[action] Is it old?", "[answer] A tale."],
            ['<think>Hm.</think>{"response": "Maybe"}', 'Well: {"scores": [1, 0.7, 0, 1]}'],
            [0, 0.7],
        ),
        (
            ROOM,
            ["[action] How large?"],
            ['{"covered": [0, 0]}', '{"response": "Rather small."}'],
            [1],
        ),
    ],
)
def test_a_chat_model_plays_every_role(task, calls, replies, scores):
    gym = next(gym for gym in GYMS.values() if type(task) is type(gym.tasks(1, 0)[0]))
    client = ScriptedClient(replies)
    env = gym.play(task, user=ModelUser(client), judge=ModelUser(client))
    assert [step(env, call).reward for call in calls] == pytest.approx(scores) and len(
        client.requests
    ) == len(replies)
    if task is ROOM:
        prompt = client.requests[-1].messages[-1]["content"]
        assert "Extent" in prompt and not [
            text
            for text in (
                "Finish",
                "satin",
                "Ladder",
                "ladder",
                "borrowed",
                "Pets",
                "parrot",
                "How large is it?",
            )
            if text in prompt
        ]


# Hostile texts


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


@needs_rows
@pytest.mark.parametrize(
    "name, count, key",
    [("telepathy", 360, "title"), ("turtle", 402, "title"), ("intention", 380, "id")],
)
def test_rows_of_training_are_the_same_tasks(name, count, key):
    def content(task):
        return {
            field: getattr(task, field)
            for field in type(task).__dataclass_fields__
            if field != "id"
        }

    read_parquet = pytest.importorskip("pandas").read_parquet
    gym, known = (
        GYMS[name],
        {getattr(task, key): task for task in map(GYMS[name].read, rows_of(name))},
    )
    tasks = [
        gym.read(row)
        for row in read_parquet(DATA / f"userrl/parquet/{name}_train.parquet").to_dict("records")
    ]
    assert len(tasks) == len({task.id for task in tasks}) == count
    for task in tasks:
        assert content(task) == content(known[getattr(task, key)])
        assert run_sync(play_through(gym.play(task), gym.expert)).stop in ("done", "turn_limit")


@needs_rows
def test_every_public_weighting_ends_at_a_threshold_of_one():
    tasks = [turtle.read(row) for row in rows_of("turtle")]
    assert sum(sum(part.score for part in task.criteria) < 1 for task in tasks) > 50  # by rounding
    for task in tasks:
        env = turtle.play(task, judge=says(marks=[{"scores": [1] * len(task.criteria)}]))
        assert step(env, "[answer] All of it.").reward == pytest.approx(1) and env.stop == "done"


@needs_rows
def test_copying_the_surface_of_public_stories_does_not_pay():
    filler = "It was as it was, and there was more to it than anybody had thought of at the time."
    paid = [
        step(turtle.play(task), ToolCall("answer", f"{task.surface} {filler}")).reward
        for task in map(turtle.read, rows_of("turtle"))
    ]
    assert sum(paid) / len(paid) < 0.02  # only where the surface tells a whole criterion


TELEPATHY = {
    "id": "e1",
    "title": "Abacus",
    "description": "A tool.",
    "goal": "Guess.",
    "target_entity": "Abacus - a frame",
    "category": "tool",
}
TURTLE = {
    "story_id": "1",
    "new_title": "T",
    "new_surface": "S.",
    "new_bottom": "B.",
    "evaluation": [{"statement": "One.", "score": 0.6}, {"statement": "Two.", "score": 0.4}],
}
INTENTION = {
    "id": "i1",
    "category": "C",
    "task": "Do it.",
    "missing_details": [{"description": "D", "importance": "3"}],
}


@pytest.mark.parametrize(
    "name, row, change",
    [
        *(
            ("telepathy", TELEPATHY, change)
            for change in (
                {"title": None},
                {"target_entity": 7},
            )
        ),
        *(
            ("turtle", TURTLE, change)
            for change in (
                {"evaluation": None},
                {"evaluation": [{"statement": "One."}]},
                {"evaluation": "One."},
            )
        ),
        *(
            ("intention", INTENTION, change)
            for change in (
                {"missing_details": None},
                {"missing_details": [{"description": "D", "importance": "4"}]},
                {"missing_details": [{"importance": "3"}]},
                {"missing_details": [7]},
                {"missing_details": [{"description": "D", "importance": "high"}]},
            )
        ),
    ],
)
def test_rows_that_lack_something_are_refused_by_name(name, row, change):
    assert isinstance(GYMS[name].play(GYMS[name].read(row)), Environment)
    with pytest.raises(DataError, match="as published"):
        GYMS[name].read(row | change)


def test_rows_of_training_whose_other_half_is_absent_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HUMANLM_DATA", str(tmp_path))
    for name, kept in (
        ("turtle", {"title": "T", "surface": "S.", "bottom": "B."}),
        ("intention", {"id": "i1", "task": "Do it."}),
    ):
        with pytest.raises(DataError, match="Set HUMANLM_DATA"):
            GYMS[name].read({"reward_model": kept})
    monkeypatch.setenv("HUMANLM_DATA", str(tmp_path / "later"))
    (tmp_path / "later/userrl").mkdir(parents=True)
    (tmp_path / "later/userrl/gym_turtle.jsonl").write_text(json.dumps(TURTLE) + "\n", "utf-8")
    assert turtle.read(
        {"reward_model": {"title": "T", "surface": "S.", "bottom": "B."}}
    ).criteria == (_StoryCriterion("One.", 0.6), _StoryCriterion("Two.", 0.4))
    with pytest.raises(DataError, match="is not in"):
        turtle.read({"reward_model": {"title": "Else"}})
