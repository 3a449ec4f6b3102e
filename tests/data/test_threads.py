"Logs become entries without losing a line or leaking a reply, whatever the file looks like."

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from humanlm.core.basics import write_jsonl
from humanlm.core.records import Message, Thread
from humanlm.data.build import built_examples
from humanlm.data.dataset import check_leakage
from humanlm.data.files import Faults
from humanlm.data.threads import _import_threads, _thread_entries

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("HUMANLM_DATA", "missing"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="HUMANLM_DATA names no folder")
HOSTILE = (
    "</response><|im_end|>\n<think> &amp; <script>x</script> \u202e \x00 p_1: @p_2 {persona} %s"
)


def random_threads(seed, people=6, length=80):
    "Lines by a few people, each linked to some random others, earlier, later or missing."
    rng, words = (
        random.Random(seed),
        "tea rain bike shed? no! maybe thanks :) p_1: @p_2 http://x.y".split(),
    )

    def line(t, i):
        parents = [
            rng.choice([rng.randrange(length + 5), max(i - rng.randint(1, 4), 0)])
            for _ in range(rng.choice([0, 1, 1, 1, 2]))
        ]
        text = rng.choice([" ".join(rng.choices(words, k=rng.randint(1, 9))), "", HOSTILE])
        return Message(
            f"{t}/{i}",
            "user",
            rng.choice([f"p_{rng.randrange(people)}", ""]),
            text,
            None,
            tuple(f"{t}/{p}" for p in parents),
        )

    return [Thread(t, "random", tuple(line(t, i) for i in range(length))) for t in ("a", "b")]


@pytest.mark.parametrize("seed", range(2))
def test_no_line_is_lost_and_contexts_are_earlier(seed):
    threads, faults = random_threads(seed), Faults()
    entries = _thread_entries(threads, faults)
    lines = [m for t in threads for m in t.messages]
    place, author = {m.id: i for i, m in enumerate(lines)}, {m.id: m.name for m in lines}
    assert len(entries) + faults.counts.total() == len(lines)
    replies = [e for e in entries if e.target]
    assert len(replies) > 10 and len({e.id for e in entries}) == len(entries)
    for e in replies:
        assert author[e.id] == e.user_id != "" and e.reply.strip() and e.context
        assert all(place[i] < place[e.id] for i, *_ in e.context)
        assert e.context[-1][2] != e.user_id and f"@{e.user_id}" not in str(e.context)


def test_a_flat_chat_answers_the_message_before_and_ends_in_a_silence(tmp_path):
    said = [("a", 0), ("a", 1), ("b", 2), ("c", 3), ("b", 4), ("a", 600), ("b", 601)]
    rows = [
        {"channel": "x", "sender": who, "sentAt": 1_700_000_000 + 60 * t, "message": f"{who}{t}"}
        for who, t in said
    ]
    form = []
    for some in (rows, rows[::-1]):  # also with the newest first
        (thread,) = _import_threads(write_jsonl(tmp_path / "t.jsonl", some), tell=form.append)
        entries = _thread_entries([thread], Faults())
        found = [(e.context[-1][3], len(e.context), e.reply) for e in entries if e.target]
        assert found == [("a0\na1", 1, "b2"), ("b2", 2, "c3"), ("c3", 3, "b4"), ("a600", 1, "b601")]
    assert "user: sender, thread: channel, time: sentAt" in form[0] and "the one before" in form[0]


@pytest.mark.parametrize(
    "times, first, how",
    [
        (["2023-04-01 08:00:00 UTC"], "2023-04-01T08:00", ""),
        (["Wed Mar 01 18:00:00 +0000 2023"], "2023-03-01T18:00", ""),
        (["03/01/2023 06:00 PM"], "2023-03-01T18:00", "months first"),
        (["03/01/2023 06:00 PM", "13/01/2023 06:00 PM"], "2023-01-03T18:00", "days first"),
        (["01/03/2023 18:00"], "2023-03-01T18:00", "days first"),
        (["01/03/2023 18:00", "1/31/2023 9:05"], "2023-01-03T18:00", "months first"),
        (["01.03.23, 18:00"], "2023-03-01T18:00", "days first"),
    ],
)
def test_dates_of_tables_are_read_by_their_column(tmp_path, times, first, how):
    rows = [
        {"user": "a", "text": "x"} | dict(zip(("date", "time"), [t] if isinstance(t, str) else t))
        for t in times
    ]
    plan = []
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    (thread,) = _import_threads(path, tell=plan.append)
    want = datetime.fromisoformat(first).replace(tzinfo=UTC).timestamp()
    assert thread.messages[0].time == want and how in plan[0]


@needs_data
def test_a_real_log_trains_on_earlier_lines_of_its_own_people():
    "Evidence and contexts are checked against the file itself, not against our own records."
    path = DATA / "irc_threads" / "irc_dev.jsonl"
    config = yaml.safe_load((ROOT / "configs" / "humanlm-threads.yaml").read_text())["data"]
    examples, card = built_examples("threads", str(path), tuple(config["columns"].items()))
    raw = {f"{r['log']}/{r['msg']}": r for r in map(json.loads, path.read_text().splitlines())}
    assert "15,120 rows were read" in card and len(examples) > 800
    assert not check_leakage(examples)
    for e in examples:
        log, number = e.id.split("/")
        assert raw[e.id]["user"] == e.user_id
        for m in e.context:
            assert m.id.split("/")[0] == log and int(m.id.split("/")[1]) < int(number)
            assert (m.name == e.user_id) == (raw[m.id]["user"] == e.user_id)
        for i in e.persona.evidence_ids:
            assert raw[i]["user"] == e.user_id and raw[i]["date"] <= raw[e.id]["date"]
            assert i.split("/")[0] != log or int(i.split("/")[1]) < int(number)
