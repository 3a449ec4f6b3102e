"""Template, function, search: what they pay and refuse, and published rows."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from humanlm.core.basics import read_jsonl, run_sync
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.function import _apply_rule, _FunctionTask, function
from humanlm.gyms.protocol import GymConfig, ToolCall, find_gym, play_through
from humanlm.gyms.search import (
    _same_answer,
    _SearchTask,
    _WebPage,
    search,
)

DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_rows = pytest.mark.skipif(
    not (DATA / "userrl").is_dir(), reason="set HUMANLM_DATA to a folder with userrl"
)
HIDDEN = _FunctionTask("hidden", "a * (b - c) + d", (3, 5, 2, 3), 12.0)
RIVER = _SearchTask(
    "river",
    "Which river flows through Sabero?",
    "Mirale",
    ("the Mira",),
    (_WebPage("Sabero", "Sabero lies on the Mirale."), _WebPage("Tovi", "A town.")),
)


def say(env, *calls: str):
    "Execute calls; the turns"
    return [run_sync(env.step(call)) for call in calls]


# ---- all four


@pytest.mark.parametrize(
    "name, gym",
    [
        ("FunctionGym", function),
        ("interact_searchgym", search),
    ],
)
def test_published_names_lead_to_the_gym(name, gym):
    assert find_gym(name) is gym


# ---- function (11.6)


def test_function_actions_do_what_the_published_table_says():
    env = function.play(HIDDEN)
    for call, words, fault in [
        ("[action] 1 2 3 4", "the result is 3.", ""),
        ("[action] 1-2 3 4", "the result is -1.", ""),
        ("[action] 1 2 3", "four whole", "format"),
        ("[action] 1 2 3 4 5", "four whole", "format"),
        ("[action] 3 5 2 3", "must find", "test"),
        ("[search] Test ", "a = 3, b = 5, c = 2, d = 3", ""),
        ("[search] the rule", "Only the word", "format"),
        ("[answer] ", "one number", "format"),
        ("[answer] twelve", "one number", "format"),
        ("[answer] inf", "not right", ""),
        ("no call", "[action]", "no_call"),
        ("[answer] 12.0000009", "is right", ""),
    ]:
        turn = say(env, call)[0]
        assert words in turn.feedback and turn.fault == fault, turn
    assert env.stop == "done" and env.score == 1 and "12" not in env.turns[8].feedback
    ended = function.play(HIDDEN)
    assert (
        "12" not in say(ended, "[finish]")[0].feedback
        and ended.stop == "finish"
        and ended.score == 0
    )


@pytest.mark.parametrize(
    "probe",
    ["3.0000001 5 2 3", "3 5 2 3.4", "3.0 5.0 2.0 3.0", "+3 5 2 3", "003 5 2 3", "3 5 2 2.9999999"],
)
def test_function_refuses_a_probe_beside_the_test(probe):
    assert say(function.play(HIDDEN), f"[action] {probe}")[0].fault in ("format", "test")


def test_function_guessing_does_not_pay():
    def sweep(env):
        return ToolCall("answer", str(len(env.turns)))

    def mean(config):
        return sum(
            run_sync(play_through(function.play(task, config), sweep)).score for task in tasks
        ) / len(tasks)

    tasks = [task for task in function.tasks(300, 3) if 0 <= task.expected < 16]
    assert len(tasks) > 30 and mean(GymConfig(compat="userrl")) == 1 and mean(GymConfig(16)) < 0.35
    assert len(run_sync(play_through(function.play(HIDDEN), sweep)).turns) == 3


@pytest.mark.parametrize(
    "rule",
    [
        "9 ** 9 ** 9 ** 9",
        "a ** b ** c ** d",
        "(a ** b) ** (c ** d)",
        "(a - b) ** (c / d)",
        "a ** -(b ** c ** d)",
    ],
)
def test_no_probe_builds_a_giant_number(rule):
    for values in [(999_999,) * 4, (-999, 999, 999, 999), (0, 0, 0, 0), (1, 2, 3, 4)]:
        value = _apply_rule(rule, values)
        assert value is None or abs(value) <= 1e12


# ---- search (11.12)


def test_search_refuses_the_sixth_search():
    env = search.play(RIVER)
    turns = say(env, "[search] sabero", *["[search] river"] * 4, "[search] sabero")
    assert "1. Sabero: Sabero lies" in turns[0].feedback and "left: 0" in turns[4].feedback
    assert turns[5].fault == "budget" and "Sabero" not in turns[5].feedback
    assert say(env, "[answer] mirale!")[0].reward == 1


@pytest.mark.parametrize(
    "said, gold, right",
    [
        ("June 20, 1837", "20 June 1837", True),
        ("19 June 1837", "20 June 1837", False),
        ("6300 km", "6,300 km", True),
        ("10.80", "10.8", True),
        ("three", "3", True),
        ("Toghon Temür", "Toghon Temur", True),
        ("Saturn 1B", "Saturn V", False),
        ("not Sir Nicholas Bacon", "Sir Nicholas Bacon", False),
        ("1823, 1824, 1825", "1823", False),
        ("Rome Madrid", "Madrid", False),
        ("", "Madrid", False),
    ],
)
def test_answers_are_compared_as_people_would(said, gold, right):
    assert _same_answer(said, gold) is right


BARE = _SearchTask("bare", "Who?", "Nobody")


def address(server):
    return f"http://127.0.0.1:{server.server_port}/search"


class Web(BaseHTTPRequestHandler):
    "Answers as Serper does, as often as `replies` says, with what it was asked in `seen`"

    replies, seen = [], []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers["X-API-KEY"], body))
        status, text = self.replies.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


def test_search_on_the_web_reads_its_key_when_it_is_made(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    code = "import humanlm.gyms.search, sys; assert 'httpx2' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    monkeypatch.setenv("SERPER_API_KEY", "key-7")
    found = {
        "answerBox": {"title": "Box", "answer": "42"},
        "organic": [{"title": "A", "snippet": "a", "link": "l"}],
    }
    Web.replies[:] = [
        (200, json.dumps(found)),
        (200, "{}"),
        (403, "{}"),
        (200, "<html>"),
        (200, "[]"),
    ]
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("humanlm.gyms.search._SERPER_URL", address(server))
        env = search.play(BARE)
        turns = say(env, "[search] life", "[search] nothing", "[search] refused")
        others = [search.play(BARE) for _ in range(2)]
        for other in others:
            say(other, "[search] broken")
        server.shutdown()
    assert "1. Box: 42\n2. A: a" in turns[0].feedback and "Nothing was found" in turns[1].feedback
    assert (
        env.stop == "env_error"
        and "failed" in turns[2].feedback
        and [other.stop for other in others] == ["env_error"] * 2
    )
    assert Web.seen[0] == ("key-7", {"q": "life", "num": 15}) and "key-7" not in repr(env.turns)


# ---- household


# ---- published rows


@needs_rows
@pytest.mark.parametrize(
    "gym, file, rows", [(function, "gym_function", 460), (search, "gym_search", 69)]
)
def test_published_rows_play(gym, file, rows):
    tasks = [gym.read(row) for row in read_jsonl(DATA / "userrl" / f"{file}.jsonl")]
    assert len(tasks) == len({task.id for task in tasks}) == rows
    assert run_sync(gym_problems(gym, tasks=tasks, odd=8 * rows)) == []
