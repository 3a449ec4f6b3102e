"Travel: what is paid and refused, which tricks earn nothing, and the published rows."

import json
from collections import Counter
from dataclasses import replace

import pytest

from humanlm.core.basics import run_sync
from humanlm.gyms.travel import (
    _TRAVEL_KINDS,
    _TRAVEL_PAY,
    _option_table,
    _travel_score,
    _travel_tasks,
    _TravelAspect,
    _TravelOption,
    _TravelTask,
    travel,
)


def part(kind, wishes, details, *sorts):
    letter = _TRAVEL_KINDS[kind].letter
    return _TravelAspect(
        kind,
        "Rome",
        details,
        wishes,
        tuple(
            _TravelOption(f"{letter}{n}", sort, 100 + n, {"place": "Rome"})
            for n, sort in enumerate(sorts, 1)
        ),
    )


FLIGHT, HOTEL = (_TRAVEL_KINDS[name].wishes for name in ("flight", "hotel"))
TRIP = _TravelTask(
    "trip",
    "I am flying from Oslo to Rome on May 3 and need a hotel there until May 9.",
    (  # best F1 and H3; H2 is correct
        part(
            "flight",
            (FLIGHT[0], FLIGHT[6]),
            {"origin": "Oslo", "destination": "Rome", "date": "May 3"},
            "best",
            "wrong",
            "noise",
        ),
        part(
            "hotel",
            (HOTEL[6], HOTEL[8]),
            {"city": "Rome", "check_in": "May 3", "check_out": "May 9"},
            "wrong",
            "correct",
            "best",
        ),
    ),
)
SEARCHES = [
    '[search] {"aspect": "flight", "origin": "Oslo", "destination": "Rome", "date": "3rd of May"}',
    '[search] {"aspect": "hotel", "city": "rome", "check_in": "May 3", "check_out": "9 May"}',
]
CHATTER = "[action] It is a fine day."


def say(env, *calls):
    "Execute calls; the turns"
    return [run_sync(env.step(call)) for call in calls]


def begin(task=TRIP, user=None, judge=None, **settings):
    return travel.play(task, replace(travel.config, **settings), user, judge)


# ---- 11.11


def test_the_best_pays_one_and_a_correct_one_less_and_the_score_is_their_mean():
    env = begin()
    turns = say(env, "[answer] F1", "[answer] H2")
    assert (
        [turn.reward for turn in turns] == [1.0, 0.8]
        and env.stop == "done"
        and _travel_score(env) == travel.score(env) == pytest.approx(0.9)
    )


def test_two_ids_in_one_answer_are_refused_and_pay_twice_only_as_published():
    env = begin()
    [turn] = say(env, "[answer] F1, H3")
    assert (turn.reward, turn.fault, env.booked) == (0, "format", {})
    assert [turn.reward for turn in say(env, "[answer] F1", "[answer] H3")] == [1, 1]
    env = begin(compat="userrl")
    [turn] = say(env, "[answer] F1, H3")
    assert turn.reward == 2 and env.stop == "done" and _travel_score(env) == 1
    env = begin(compat="userrl")
    turns = say(
        env, "[answer] F1 F2", "[answer] F1"
    )  # a refused second id loses what the first one paid, and its part stays booked
    assert [turn.reward for turn in turns] == [0, 0] and env.booked == {"F": True}


def test_every_fifth_search_fails():
    env = begin()
    turns = say(env, *["[search] nothing"] * 4, SEARCHES[0], SEARCHES[0])
    assert (
        "does not answer" in turns[4].feedback
        and turns[4].reward == 0
        and env.shown == ["F"]
        and turns[5].reward == 0.2
    )


def test_as_published_the_wish_fails_to_come_in_the_fourth_turn():
    env = begin(compat="userrl")
    turns = say(env, *[CHATTER] * 5)
    assert (
        "Sorry" in turns[3].feedback
        and not any("Sorry" in turn.feedback for turn in (*turns[:3], turns[4]))
        and env.hinted == []
    )


def test_parts_of_the_reward_are_kept_apart():
    env = begin()
    turns = say(
        env,
        *SEARCHES,
        "[action] What meal do you want?",
        "[action] Would one change be fine on the flight, or a direct one?",
        "[answer] F1",
        "[answer] H2",
    )
    assert [dict(turn.parts) for turn in turns] == [
        {"search": 0.2},
        {"search": 0.2},
        {},
        {"wish": 0.2},
        {"choice": 1.0},
        {"choice": 0.8},
    ]
    assert env.score == pytest.approx(2.4) and _travel_score(env) == pytest.approx(0.9)


def test_published_settings_pay_as_published():
    question = "[action] Should the flight be direct?"
    assert {
        compat: [turn.reward for turn in say(begin(compat=compat), SEARCHES[0], question)]
        for compat in _TRAVEL_PAY
    } == {"userrl-training": [0, 0.8], "userrl": [0.2, 0.6], "": [0.2, 0.2]}


# ---- bad input


# ---- what is understood


# ---- tricks (section 10, items 6, 7 and 10)


def test_naming_all_attributes_in_every_turn_earns_nothing():
    for task in _travel_tasks(8, 4):
        env = travel.play(task)
        everything = (
            "Do you care for "
            + ", ".join(
                topic for aspect in task.aspects for topic in _TRAVEL_KINDS[aspect.kind].values
            )
            + "?"
        )
        assert sum(turn.reward for turn in say(env, *[f"[action] {everything}"] * 10)) == 0


def test_chatter_until_the_user_speaks_earns_nothing_and_searches_pay_once():
    env = begin(max_turns=40)
    say(env, *[CHATTER] * 12, *SEARCHES * 3)
    assert len(env.hinted) == 4 and env.score == pytest.approx(0.4)


def table(aspect, wrong=10):
    return [json.loads(line) for line in _option_table(aspect, wrong).splitlines()[1:]]


def test_neither_price_nor_place_on_the_list_tells_the_best():
    ranks, places, total = Counter(), Counter(), 0
    for aspect in (aspect for task in _travel_tasks(300, 1) for aspect in task.aspects):
        rows = table(aspect)
        places[[row["id"] for row in rows].index(aspect.best)] += 1
        ranks[
            [
                row["id"]
                for row in sorted(rows, key=lambda row: row["cost"])
                if row["place"] == aspect.place
            ].index(aspect.best)
        ] += 1
        total += 1
        assert {*rows[0]} == {"id", "cost", "place", *_TRAVEL_KINDS[aspect.kind].values} and [
            int(row["id"][1:]) for row in rows
        ] == sorted(int(row["id"][1:]) for row in rows)
    assert (
        max(ranks.values()) / total < 0.27 and max(places.values()) / total < 0.12 and ranks[0] == 0
    )


def test_whoever_leaves_out_a_wish_or_the_place_misses_the_best():
    for aspect in (aspect for task in _travel_tasks(40, 6) for aspect in task.aspects):
        for wrong in (10, 99, 4):
            rows = table(aspect, wrong)
            for known in [
                aspect.wishes,
                *([wish for wish in aspect.wishes if wish != gone] for gone in aspect.wishes),
            ]:
                fits = [
                    row
                    for row in rows
                    if row["place"] == aspect.place
                    and all(row[wish.topic] in wish.good for wish in known)
                ]
                assert (min(fits, key=lambda row: row["cost"])["id"] == aspect.best) == (
                    known is aspect.wishes
                )
            anywhere = [
                row for row in rows if all(row[wish.topic] in wish.good for wish in aspect.wishes)
            ]
            assert aspect.sorts[min(anywhere, key=lambda row: row["cost"])["id"]] == "noise"


# ---- models that play


def played(answers, calls, **settings):
    "Play with a user who answers by role; the episode, and what each role was told"
    seen = []

    async def user(env, role, payload):
        seen.append((role, payload))
        return answers.get(role) or getattr(env, f"rule_{role}")(**payload)

    env = begin(user=user, judge=user, **settings)
    say(env, *calls)
    return env, seen


def test_no_role_is_told_more_than_it_needs():
    _env, seen = played({}, [SEARCHES[0], "[action] Should the flight be direct?", CHATTER])
    told = {role: json.dumps(payload) for role, payload in seen}
    wishes = [text for _, wish in TRIP.wishes.values() for text in (str(wish), wish.hint)]
    assert (
        not any(text in told["search_judge"] for text in wishes) and "Oslo" in told["search_judge"]
    )
    [talker] = [payload for role, payload in seen if role == "talker"]
    assert {*talker} == {"message", "history"} and [turn["role"] for turn in talker["history"]] == [
        "assistant",
        "user",
    ]
    [hinter] = [payload for role, payload in seen if role == "hinter"]
    assert hinter["hint"] == FLIGHT[0].hint and not any(
        str(wish) in json.dumps(hinter) for _, wish in list(TRIP.wishes.values())[1:]
    )
