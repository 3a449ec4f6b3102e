"Chats of two people: what is in the package, personas of earlier chats only, names, a card."

import json
import random
import re
from collections import Counter, defaultdict
from importlib.util import find_spec

import pytest

from humanlm.build import _groups, main
from humanlm.core.basics import ConfigError
from humanlm.core.config import Settings
from humanlm.core.records import load_examples
from humanlm.data import chitchat
from humanlm.data.build import built_examples
from humanlm.data.chitchat import chitchat_file, read_chats
from humanlm.data.dataset import DataConfig, check_leakage
from humanlm.hierarchy.persona import format_persona
from humanlm.worlds.sources import load_data

WORDS = "tea rain bike shed garden street lamp early late quiet loud never always maybe".split()
PEOPLE = [f"{i:08x}-0000-4000-8000-000000000000" for i in range(8)]
needs_chats = pytest.mark.skipif(
    not find_spec("chitchat_dataset"), reason="chitchat-dataset is not installed"
)


def burst(who, minute, *texts):
    stamp = f"2018-05-{1 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:00Z"
    return [{"text": text, "timestamp": stamp, "sender": who} for text in texts]


def chats(n=60, seed=0):
    "Chats as the package has them: long ones, short and one-sided ones, names, a link, spam"
    rng, made = random.Random(seed), {}

    def text(i):
        return " ".join([*rng.choices(WORDS, k=6), str(i)])

    for i in range(n):
        (a, b), start = rng.sample(PEOPLE, 2), 60 * i
        turns = [
            burst((a, b)[t % 2], start + t, text(100 * i + t), text(100 * i + t + 50))
            for t in range(12)
        ]
        turns[0] = burst(a, start, "Hello")
        polite = (
            ("thanks Zoltan, that was", "nice of you zoltan", "I am @skybike on ig")
            if b == PEOPLE[0]
            else (text(i),)
        )
        turns += [
            burst(a, start + 20, *polite),
            burst(b, start + 30, "buy my cheap watches now"),
            burst(a, start + 31, "look at https://example.org/x please"),
        ]
        made[f"c{i:03}"] = {"messages": turns, "ratings": {"witty": 5}, "prompt": "Tea?"}
    made["alone"] = {"messages": [burst(PEOPLE[0], 5, "hello?", "anyone there?")], "prompt": ""}
    made["brief"] = {"messages": [burst(PEOPLE[0], 6, "hi"), burst(PEOPLE[1], 7, "got to go now")]}
    return made


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(chats()))
    return path


def require_earlier(examples, talks):
    "No persona rests on a message of the reply's chat or of one that had not ended by then"
    by_id = {chat.id: chat for chat in talks}
    checked = 0
    for e in examples:
        time = by_id[e.context_id].turns[int(e.id.rsplit("/", 1)[1])].time
        for chat, _, _ in (i.rpartition("/") for i in e.persona.evidence_ids):
            assert chat != e.context_id and by_id[chat].end < time, e.id
            checked += 1
    assert checked >= 3 * len(examples)


def test_the_command_builds_a_folder_whose_card_counts_what_was_dropped(file, tmp_path, capsys):
    flags = ["--build.source", "chitchat", "--build.path", str(file), "--build.min_comments=5"]
    runs = [tmp_path / "a", tmp_path / "b"]
    for out in runs:
        assert main([*flags, "--build.out", str(out), "--build.per_person", "9"]) == 0
    card = capsys.readouterr().out
    for kind in ("one-sided chat", "short chat", "no context", "link", "said before", "frequent"):
        assert kind in card
    rows = load_examples(runs[0] / "examples")
    assert rows == load_examples(runs[1] / "examples")
    assert max(Counter((e.split, e.user_id) for e in rows).values()) == 9
    assert {e.split for e in rows} == {"train", "val", "test"} and not check_leakage(rows)
    assert not list(tmp_path.glob("*.salt"))
    total = json.loads((runs[0] / "build.json").read_text())
    turns = sum(len(chat.turns) for chat in read_chats(file))
    assert sum(total["met"].values()) + sum(total["fates"].values()) == turns


def test_personas_quote_earlier_chats_only_and_no_chat_is_in_two_splits(file):
    examples, _ = built_examples("chitchat", str(file))
    talks = read_chats(file)
    require_earlier(examples, talks)
    splits = defaultdict(set)
    for e in examples:
        splits[e.context_id].add(e.split)
        assert 12 <= len(e.reply) <= 200 and 0 < len(e.context) <= 8
        assert format_persona(e.persona).startswith('earlier messages: "')
        people = {m.name for m in e.context} | {e.user_id}
        assert len(people) <= 2 and all(len(name) == 13 for name in people)
    assert all(len(some) == 1 for some in splits.values())
    start = {chat.id: chat.turns[0].time for chat in talks}
    times = {
        split: [start[c] for c, some in splits.items() if split in some]
        for split in ("train", "test")
    }
    assert max(times["train"]) < min(times["test"])


def test_defaults_of_the_source_hold_on_the_line_and_in_files(tmp_path):
    file = tmp_path / "chats.yaml"
    file.write_text("build: {source: chitchat}")
    assert _groups(["--build.source=chitchat"]) == _groups(["--config", str(file)])
    assert _groups(["--config", str(file), "--build.source", "reddit"]) == _groups([])


def test_a_missing_package_is_one_sentence_with_the_line_to_type(monkeypatch):
    monkeypatch.setattr(chitchat, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed. Next: pip install .*\[pocket\]"):
        chitchat_file()


@needs_chats
def test_chats_of_the_package_leak_nothing():
    data = load_data(Settings({"data": DataConfig(source="chitchat", max_test=None)}))
    assert not check_leakage(data.examples) and len(data.split("train")) > 10_000
    require_earlier(data.examples, read_chats(chitchat_file()))
    assert max(Counter((e.split, e.user_id) for e in data.examples).values()) == 50
    assert "one-sided chat" in data.notes
    text = " ".join(e.reply for e in data.examples).casefold()
    assert "mireya" not in text and not re.search(r"(^|\s)@\w\w", text)
    assert all(re.fullmatch(r"u\d{12}", e.user_id) for e in data.examples)
