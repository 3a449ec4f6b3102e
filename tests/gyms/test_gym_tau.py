"""The desk of a shop: what tools do and refuse, what a talk pays, public rows, and tricks."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from humanlm.core.basics import read_jsonl, run_sync
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.protocol import ToolCall, play_through
from humanlm.gyms.tau import _REASONS, STOP, _announces, _Desk, _open_shop, _tau_tasks, tau

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_rows = pytest.mark.skipif(
    not ((DATA / "userrl").is_dir() and (DATA / "tau_bench").is_dir()),
    reason="set HUMANLM_DATA to a folder with userrl and tau_bench",
)
TASKS = _tau_tasks(64, 0)
SHOP = _open_shop("small/0.0")


def say(env, *calls: str):
    "Execute calls; the turns"
    return [run_sync(env.step(call)) for call in calls]


def tool(name, **arguments):
    return "[answer] " + json.dumps({"name": name, "arguments": arguments})


def doing(*names, tasks=TASKS):
    "Find a task whose right calls are these"
    return next(task for task in tasks if tuple(action["name"] for action in task.actions) == names)


def gold(task):
    return [tool(action["name"], **action["kwargs"]) for action in task.actions]


def an_order(status):
    return next(row for row in SHOP["orders"].values() if row["status"] == status)


# ---- what is paid (11.13)


def test_the_right_calls_pay_one_in_any_order_of_items_and_an_extra_change_pays_nothing():
    task = doing("cancel_pending_order")
    env = tau.play(task)
    turns = say(env, *gold(task), "[action] Your order has been cancelled.")
    assert [turn.reward for turn in turns] == [0, 1] and env.stop == "done" and env.score == 1
    other = next(
        key
        for key, row in SHOP["orders"].items()
        if row["status"] == "pending" and key != task.actions[0]["kwargs"]["order_id"]
    )
    greedy = tau.play(task)
    say(
        greedy,
        *gold(task),
        tool("cancel_pending_order", order_id=other, reason=_REASONS[0]),
        "[action] Your order has been cancelled.",
    )
    assert greedy.score == 0
    swap = next(
        task
        for task in _tau_tasks(300, 0)
        if any(len(action["kwargs"].get("new_item_ids", ())) > 1 for action in task.actions)
    )
    turned = tau.play(swap)
    for action in swap.actions:
        kwargs = {
            name: value[::-1] if isinstance(value, list) else value
            for name, value in action["kwargs"].items()
        }
        say(turned, tool(action["name"], **kwargs))
    assert turned.desk.state() == turned.task.goal[0]


def test_where_nothing_may_change_refusing_pays_and_any_change_does_not():
    task = next(task for task in TASKS if not task.actions)
    polite, false, eager = tau.play(task), tau.play(task), tau.play(task)
    assert (
        say(polite, "[action] I am sorry, that is not possible.")[0].reward == 1
        and polite.stop == "done"
    )
    say(false, "[action] It is done.", "[action] All is done!")
    assert not false.stop and false.score == 0
    say(
        eager,
        tool("cancel_pending_order", order_id=an_order("pending")["order_id"], reason=_REASONS[0]),
        "[action] I cannot do that.",
    )
    assert eager.score == 0


def test_what_must_be_told_is_told_to_the_customer_and_not_to_a_tool():
    task = replace(doing("cancel_pending_order"), outputs=("1234.5",))
    silent, telling = tau.play(task), tau.play(task)
    say(silent, *gold(task), tool("think", thought="1234.5"), "[action] It has been cancelled.")
    say(
        telling,
        "[action] You get $1,234.50 back, or 1,234.5 in short.",
        *gold(task),
        "[action] It has been cancelled.",
    )
    assert (silent.score, telling.score) == (0, 1) and run_sync(
        play_through(tau.play(task), tau.expert)
    ).score == 1


def test_handing_over_ends_a_talk_and_is_paid_by_the_state():
    task = doing("cancel_pending_order")
    early, late = tau.play(task), tau.play(task)
    say(early, tool("transfer_to_human_agents", summary="too hard"))
    say(
        late,
        *gold(task),
        tool("transfer_to_human_agents"),
        tool("transfer_to_human_agents", summary="the rest"),
    )
    assert (early.stop, early.score, late.stop, late.score, late.turns[-2].fault) == (
        "done",
        0,
        "done",
        1,
        "format",
    )


# ---- what does not pay


def test_a_mark_or_a_claim_of_the_policy_ends_nothing():
    task = doing("cancel_pending_order")
    env = tau.play(task)
    say(
        env,
        f"[action] {STOP}",
        f"[action] Say {STOP}",
        f"[action] All done. {STOP}",
        '[action] {"reply": "bye", "done": true}',
        f"[search] {STOP}",
        f"[answer] {STOP}",
    )
    assert not env.stop and env.score == 0
    for text in (
        "Do you want it cancelled?",
        "It will be cancelled.",
        "Once it is done I tell you.",
        "Nothing was changed.",
        "I can have it done.",
        "Please wait until it is completed.",
    ):
        say(env, f"[action] {text}")
        assert not env.stop
    assert _announces("Your order has been cancelled, and the money will arrive within a week.")
    say(env, "[finish]")
    assert env.stop == "finish" and env.score == 0


# ---- the customer


def test_the_customer_agrees_to_its_own_wish_only():
    task = doing("cancel_pending_order")
    order, env = task.actions[0]["kwargs"]["order_id"], tau.play(task)
    right, wrong_order, vague = say(
        env,
        f"[action] I would cancel {order}. Shall I go ahead?",
        "[action] I would cancel #W0000001. Do you confirm?",
        "[action] Shall I go ahead?",
    )
    assert (
        right.feedback == "Yes, please go ahead."
        and wrong_order.feedback.startswith("No,")
        and not vague.feedback.startswith("Yes")
    )


def test_a_model_as_customer_begins_with_the_recorded_words_and_leaves_when_it_is_told():
    asked, answers = (
        [],
        iter([{"reply": "Well.", "done": False}, {"reply": "Thanks.", "done": True}]),
    )

    async def customer(env, role, payload):
        asked.append(payload)
        return next(answers)

    task = doing("cancel_pending_order")
    env = tau.play(task, user=customer)
    early, last = say(env, f"[action] Hello {STOP} you.", "[action] It is done.")
    assert (
        asked[0]["history"] == [{"role": "user", "content": task.opening}]
        and asked[0]["message"] == "Hello   you."
        and [turn["role"] for turn in asked[1]["history"]] == ["user", "assistant", "user"]
    )
    assert early.feedback == "Well." and (last.reward, env.stop) == (0, "done"), (
        "it left content, though nothing was done"
    )


# ---- tools


def test_tools_refuse_what_the_rules_of_the_desk_forbid():
    pending, delivered = map(an_order, ("pending", "delivered"))
    way = delivered["payment_history"][0]["payment_method_id"]
    one = delivered["items"][0]["item_id"]
    for name, arguments, words in [
        (
            "cancel_pending_order",
            {"order_id": delivered["order_id"], "reason": _REASONS[0]},
            "is delivered",
        ),
        ("cancel_pending_order", {"order_id": pending["order_id"], "reason": "bored"}, "reason"),
        (
            "cancel_pending_order",
            {"order_id": pending["order_id"][1:], "reason": _REASONS[0]},
            "not found",
        ),
        (
            "return_delivered_order_items",
            {"order_id": delivered["order_id"], "item_ids": [one], "payment_method_id": "paypal_1"},
            "payment method",
        ),
        (
            "exchange_delivered_order_items",
            {
                "order_id": delivered["order_id"],
                "item_ids": [one],
                "new_item_ids": ["1"],
                "payment_method_id": way,
            },
            "no available variant",
        ),
        (
            "exchange_delivered_order_items",
            {
                "order_id": delivered["order_id"],
                "item_ids": [one],
                "new_item_ids": [],
                "payment_method_id": way,
            },
            "one new item for each",
        ),
        ("find_user_id_by_email", {"email": "nobody@example.com"}, "user not found"),
        ("get_product_details", {"product_id": one}, "not found"),
    ]:
        desk = _Desk(SHOP)
        shown, fault = desk.call(name, arguments)
        assert words in shown and fault == "tool" and not desk.changed, (name, shown)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"name": null, "arguments": {}}',
        '{"name": "think", "arguments": [1]}',
        '{"name": "__init__", "arguments": {}}',
        '{"name": "think", "arguments": {"thought": {"a": 1}}}',
        '{"name": "think", "arguments": {"thought": 1e999}}',
        '{"name": "think", "arguments": {"self": "x"}}',
        '{"name": "calculate", "arguments": {"expression": 7}}',
        '{"name": "get_order_details", "arguments": {"order_id": ' + "9" * 3900 + "}}",
        '{"name": "return_delivered_order_items", "arguments": {"order_id": "#W1", '
        '"item_ids": "12", "payment_method_id": "p"}}',
        '{"name": "return_delivered_order_items", "arguments": {"order_id": "#W1", '
        '"item_ids": [["1"]], "payment_method_id": "p"}}',
        '{"a":' * 660,
        '{"name": "' + "x" * 3900 + '"}',
        "erase_all: {}",
        "\x00",
    ],
)
def test_hostile_calls_of_tools_become_text_and_change_nothing(content):
    env = tau.play(TASKS[0])
    turn = run_sync(env.step(ToolCall("answer", content)))
    assert (
        turn.fault == "format"
        and not env.desk.changed
        and not env.stop
        and 0 < len(turn.feedback) < 1000
        and turn.reward == 0
    )


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9",
        "__import__('os').system('x')",
        "a",
        "'a'*9",
        "1/0",
        "(" * 199,
        "-" * 199,
        "9" * 199 + "*1",
        "\x00",
    ],
)
def test_the_calculator_computes_and_runs_nothing(expression):
    desk = _Desk(SHOP)
    assert desk.call("calculate", {"expression": expression})[1] == "tool"
    assert desk.call("calculate", {"expression": "(2.5 + 1) * 4 - 3/2"}) == ("12.5", "")


# ---- public rows


@needs_rows
def test_every_public_row_is_played_and_the_expert_is_paid():
    tasks = [tau.read(row) for row in read_jsonl(DATA / "userrl" / "gym_tau.jsonl")]
    refused = {}
    for task in tasks:
        desk = _Desk(_open_shop(task.shop))
        for action in task.actions:
            shown, fault = desk.call(action["name"], action["kwargs"])
            if fault:
                refused.setdefault(task.id, []).append(shown)
        played = run_sync(play_through(tau.play(task), tau.expert))
        assert played.score == 1 and played.stop == "done", task.id
    assert (
        len(tasks) == 500 and sum(len(task.actions) for task in tasks) == 768 and len(refused) == 19
    )
    assert all(
        "gift_card" in text and "is needed" in text for texts in refused.values() for text in texts
    ), "the only reason: a gift card holds too little"
    assert run_sync(gym_problems(tau, tasks=tasks[::25])) == []
