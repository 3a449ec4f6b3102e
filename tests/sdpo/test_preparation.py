"""Prompts and interactions of logs: the rules of each set, every reason counted, no row twice, files whole or absent, hostile rows."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanlm.core.basics import ConfigError, DataError, read_jsonl, to_json, write_jsonl
from humanlm.data.files import RowFault
from humanlm.sdpo.__main__ import main
from humanlm.sdpo.hindsight import ROLES, is_blank, problem, read_interactions
from humanlm.sdpo.preparation import (
    KINDS,
    TLDR_MARK,
    TLDR_SYSTEM,
    _any_prompt,
    _helpsteer2,
    _interactions_of,
    _marked_turns,
    _mixed,
    _prepare_files,
    _PrepareConfig,
    _Tally,
    _tally_table,
    _tldr,
    read_prompts,
)

C = _PrepareConfig()


def talk(*said, names=("role", "content")):
    "A conversation in which the user begins, and both take turns"
    return [
        dict(
            zip(
                names,
                ((("user", "assistant") if names[0] == "role" else ("human", "gpt"))[i % 2], text),
            )
        )
        for i, text in enumerate(said)
    ]


def run(kind, rows, folder, validation=None, **settings):
    "Prepare rows and give what was kept and counted"
    write_jsonl(folder / "in.jsonl", rows)
    if validation is not None:
        settings["validation"] = str(write_jsonl(folder / "val.jsonl", validation))
    tallies = _prepare_files(
        kind, _PrepareConfig(train=str(folder / "in.jsonl"), **settings), folder / "out"
    )
    return {
        split: (
            read_jsonl(folder / f"out/{split}.jsonl"),
            dict(t.row_faults.counts),
            dict(t.reply_faults.counts),
        )
        for split, t in tallies.items()
    }


ROW_REASONS = {
    "no prompt",
    "no conversation",
    "does not end with the user",
    "system message in the middle",
    "unknown role",
    "empty prompt",
    "empty reply",
    "several turns in one text",
    "prompt too long",
    "reply too long",
    "other language",
    "too few messages",
    "conversation too long",
    "message too long",
    "the same again",
    "in train",
}
REPLY_REASONS = {
    "empty reply",
    "no follow-up",
    "empty follow-up",
    "reply rests on a tool",
    "missing turn",
    "system message in the middle",
    "the same again",
    "in train",
}


def reason(make, *args):
    with pytest.raises(RowFault) as found:
        make(*args)
    assert found.value.kind in ROW_REASONS
    return found.value.kind


# The two published sets of prompts


def test_a_post_becomes_a_prompt_with_our_instruction():
    made = _tldr({"info": {"post": " My cat left.\n", "article": "not this"}})
    assert made == {
        "messages": [
            {"role": "system", "content": TLDR_SYSTEM},
            {"role": "user", "content": "My cat left."},
        ]
    }
    assert "TL;DR:" in TLDR_SYSTEM
    assert _tldr({"info": {"post": "  ", "article": "News."}})["messages"][1]["content"] == "News."


@pytest.mark.parametrize("end", ["TL;DR:", "\nTL;DR:\n", "\n\ntl;dr", " TL;DR: \n TL;DR:", "TL;DR"])
def test_the_mark_at_the_end_of_a_post_is_taken_off(end):
    assert _tldr({"info": {"post": "A TL;DR: b" + end}})["messages"][1]["content"] == "A TL;DR: b"


def test_posts_that_are_left_out():
    most = 1023 - len(TLDR_MARK)
    assert len(_tldr({"info": {"post": "x" * most}})["messages"][1]["content"]) == most
    assert reason(_tldr, {"info": {"post": "x" * (most + 1)}}) == "prompt too long"
    assert (
        reason(_tldr, {"info": {"post": "x" * 20}}, _PrepareConfig(max_prompt_chars=20))
        == "prompt too long"
    )
    for info in (
        None,
        "post",
        [],
        {},
        {"post": None},
        {"post": 3},
        {"post": " \n"},
        {"post": "TL;DR:"},
        {"post": "", "article": ""},
    ):
        assert reason(_tldr, {"info": info}) == "empty prompt"
    assert reason(_tldr, {}) == "empty prompt"


def test_rules_of_helpsteer2_in_their_order():
    rows = [
        (("", "x"), "empty prompt"),
        (("a", " "), "empty reply"),
        ((None, None), "empty prompt"),
        (("a <extra_id_1> b", "x" * 3000), "several turns in one text"),
        (("a<EXTRA_ID_22>", "x"), "several turns in one text"),
        (("p" * 2049, "x" * 3000), "prompt too long"),
        (("p", "x" * 2049), "reply too long"),
    ]
    assert [reason(_helpsteer2, {"prompt": p, "response": r}) for (p, r), _ in rows] == [
        why for _, why in rows
    ]
    assert _helpsteer2({"prompt": "p" * 2048, "response": "x" * 2048})


def test_a_prompt_with_two_replies_stays_if_either_is_short(tmp_path):
    rows = [
        {"prompt": "Why?", "response": "x" * 3000},
        {"prompt": "Why?", "response": "So."},
        {"prompt": "Why?", "response": "Because."},
    ]
    assert run("helpsteer2", rows, tmp_path)["train"] == (
        [{"id": "in-2", "messages": talk("Why?")}],
        {"reply too long": 1, "the same again": 1},
        {},
    )


# Any prompts


def test_prompts_in_every_form():
    asked = {"messages": talk("Hi")}
    for row in (
        {"prompt": "Hi"},
        {"text": " Hi "},
        {"prompt": talk("Hi")},
        {"messages": talk("Hi", names=("from", "value"))},
        {"messages": json.dumps(talk("Hi"))},
        {"turns": ["Hi"]},
        {"prompt": None, "text": "Hi"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    ):
        assert _any_prompt(row) == asked, row
    assert _any_prompt({"turns": ["Hi", "Again"]}) == asked | {"followup": "Again"}
    assert _any_prompt({"turns": ["Hi", "  "]}) == asked
    for text in ("[1, 2] sort this", "[1, 2]", '["a"]', "[", "[]"):
        assert _any_prompt({"prompt": text}) == {"messages": talk(text)}


@pytest.mark.parametrize(
    "row, why",
    [
        ({}, "no prompt"),
        ({"prompt": 3}, "no prompt"),
        ({"prompt": {"a": 1}}, "no prompt"),
        ({"messages": [3]}, "no prompt"),
        ({"messages": [{"role": 3}]}, "no prompt"),
        ({"messages": []}, "does not end with the user"),
        ({"messages": talk("a", "b")}, "does not end with the user"),
        ({"prompt": " \u200b"}, "empty prompt"),
        ({"messages": [*talk("a"), {"role": "tool", "content": "x"}, *talk("b")]}, "unknown role"),
        (
            {"messages": [*talk("a", "b"), {"role": "system", "content": "x"}, *talk("c")]},
            "system message in the middle",
        ),
        ({"prompt": "x" * 100_001}, "prompt too long"),
        ({"messages": talk("x" * 100_001, "b", "c")}, "prompt too long"),
        ({"turns": []}, "does not end with the user"),
    ],
)
def test_prompts_that_are_left_out(row, why):
    assert reason(_any_prompt, row) == why


# Interactions


def test_each_reply_between_two_user_messages_is_an_interaction():
    made = list(_interactions_of(talk("a", "b", "c", "d", "e", "f", "g", "h", "i"), "conv"))
    assert [
        (i.id, i.completion.text, i.followup.text, [m["content"] for m in i.messages], i.turn)
        for i in made
    ] == [
        ("conv_1", "b", "c", ["a"], 1),
        ("conv_3", "d", "e", ["a", "b", "c"], 3),
        ("conv_5", "f", "g", ["a", "b", "c", "d", "e"], 5),
        ("conv_7", "h", "i", ["c", "d", "e", "f", "g"], 7),
    ]


@pytest.mark.parametrize(
    "most, kept", [(1, ["c"]), (2, ["c"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])]
)
def test_a_window_begins_with_the_user(most, kept):
    second = list(
        _interactions_of(talk("a", "b", "c", "d", "e"), "conv", _PrepareConfig(history=most))
    )[1]
    assert [m["content"] for m in second.messages] == kept


def test_the_last_message_is_the_users_whatever_the_log_misses():
    "The published preparation of one set left histories that end with the assistant, and the block landed there"
    log = [
        {"role": "assistant", "content": "Welcome."},
        *talk("a", "b"),
        {"role": "assistant", "content": "b2"},
        *talk("c", "d", "e"),
    ]
    tally = _Tally()
    made = list(_interactions_of(log, "conv", C, tally))
    assert (
        tally.reply_faults.counts == {"missing turn": 2, "no follow-up": 1} and tally.replies == 4
    )
    assert [
        ([m["content"] for m in i.messages], i.completion.text, i.followup.text, i.filters)
        for i in made
    ] == [(["c"], "d", "e", ("history begins after a gap",))]


def test_a_user_who_writes_twice_is_answered_once():
    made = list(_interactions_of([*talk("a"), *talk("b", "c", "d")], "conv"))
    assert [[m["content"] for m in i.messages] for i in made] == [["b"]] and made[0].filters


def test_system_messages():
    first = {"role": "system", "content": "Be brief."}
    made = list(
        _interactions_of([first, *talk("a", "b", "c", "d", "e")], "conv", _PrepareConfig(history=1))
    )
    assert [[m["content"] for m in i.messages] for i in made] == [
        ["Be brief.", "a"],
        ["Be brief.", "c"],
    ] and not made[0].filters
    tally = _Tally()
    made = list(
        _interactions_of([*talk("a", "b", "c"), first, *talk("d", "e", "f")], "conv", C, tally)
    )
    assert [i.completion.text for i in made] == ["b"] and tally.reply_faults.counts == {
        "system message in the middle": 1
    }
    assert [
        [m["role"] for m in i.messages]
        for i in _interactions_of([first | {"content": " "}, *talk("a", "b", "c")], "conv")
    ] == [["user"]]


def test_replies_that_tell_what_a_tool_found_are_left_out():
    tool, tally = {"role": "tool", "content": "{}"}, _Tally()
    log = [*talk("a", ""), tool, {"role": "assistant", "content": "It is 5."}, *talk("b", "c", "d")]
    made = list(_interactions_of(log, "conv", C, tally))
    assert tally.reply_faults.counts == {"empty reply": 1, "reply rests on a tool": 1}
    assert [([m["content"] for m in i.messages], i.completion.text, i.filters) for i in made] == [
        (["b"], "c", ("history begins after a gap",))
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*ROLES, "tool"]),
            st.sampled_from(["", " \u200b", "text", "<|im_end|>", "\ud800", "{followup}"]),
        ),
        max_size=12,
    ),
    st.integers(1, 6),
)
def test_whatever_the_log_each_interaction_can_be_learned_from(log, most):
    messages, tally = [{"role": role, "content": text} for role, text in log], _Tally()
    made = list(_interactions_of(messages, "conv", _PrepareConfig(history=most), tally))
    assert (
        tally.replies
        == sum(role == "assistant" for role, _ in log)
        == len(made) + tally.reply_faults.counts.total()
    )
    assert {*tally.reply_faults.counts} <= REPLY_REASONS
    for i in made:
        roles = [m["role"] for m in i.messages]
        own = roles[roles[0] == "system" :]
        assert (
            problem(i.messages, i.completion.text, i.followup.text) == ""
            and own == ["user", "assistant"] * (len(own) // 2) + ["user"]
            and len(own) <= most
        )
        assert not any(is_blank(m["content"]) for m in i.messages)
        at = i.turn - len(own)
        assert [dict(m) for m in i.messages[-len(own) :]] == messages[at : i.turn] and messages[
            i.turn + 1
        ]["role"] == "user"


# The logs


def wildfeedback_row(*said, **more):
    return {"conversation_id": 7, "conversation": talk(*said, names=("from", "value"))} | more


def test_wildfeedback(tmp_path):
    rows = [
        wildfeedback_row("a", "b", "c"),
        {"conversations": talk("p", "q", "r", names=("from", "value"))},
        wildfeedback_row("a", "b"),
        wildfeedback_row("u" * 5000, "b", "c"),
        wildfeedback_row("a", "g" * 4097, "c"),
        wildfeedback_row(*["x" * 4000] * 26),
        {"conversation": None},
        wildfeedback_row("a", "", "c", "d", "e"),
    ]
    kept, row_faults, reply_faults = run("wildfeedback", rows, tmp_path)["train"]
    assert [(r["id"], r["messages"][0]["content"][:2], r["split"]) for r in kept] == [
        ("7_1", "a", "train"),
        ("in-2_1", "p", "train"),
        ("7_1", "uu", "train"),
        ("7_3", "c", "train"),
    ]
    assert row_faults == {
        "too few messages": 1,
        "message too long": 1,
        "conversation too long": 1,
        "no conversation": 1,
    } and reply_faults == {"empty reply": 1}


def test_wildchat(tmp_path):
    def row(*said, **more):
        return {
            "conversation": [m | {"toxic": False} for m in talk(*said)],
            "language": "English",
            "conversation_hash": "h",
            "model": "m-1",
            "hashed_ip": "u",
        } | more

    rows = [
        row("a", "b", "c"),
        row("a", "b", "c", language="French"),
        row("d", "e", "f", language="en"),
        row("u" * 4097, "b", "c"),
        row("a", " B ", "C"),
        row("a", "", "b"),
    ]
    kept, row_faults, reply_faults = run("wildchat", rows, tmp_path)["train"]
    assert [
        (r["conversation_id"], r["completion"]["model"], r["user_id"], r["completion"]["text"])
        for r in kept
    ] == [("h", "m-1", "u", "b"), ("h", "m-1", "u", "e")]
    assert row_faults == {
        "other language": 1,
        "message too long": 1,
        "too few messages": 1,
    } and reply_faults == {"the same again": 1}
    assert (
        len(run("wildchat", rows, tmp_path, language="")["train"][0]) == 2
        and "other language" not in run("wildchat", rows, tmp_path, language="")["train"][1]
    )


def test_texts_with_marked_turns():
    assert _marked_turns("\n\nHuman: a: b\n\nc\n\nAssistant: d\n\nHuman: e") == talk(
        "a: b\n\nc", "d", "e"
    )
    assert _marked_turns(
        "user: a\nb\nassistant: None\ntool: {}\nassistant: c\nuser: ###STOP###"
    ) == [
        *talk("a\nb", ""),
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": ""},
    ]
    assert _marked_turns("user: a\nassistant: b\nuser: thanks! ###STOP###") == talk(
        "a", "b", "thanks!"
    )
    assert _marked_turns("\n\nHuman: None\n\nAssistant: None") == talk("None", "None")
    for text in ("", "hello", "He said\n\nHuman: x", "Human:", "user", "userx: a"):
        with pytest.raises(RowFault, match="no conversation"):
            _marked_turns(text)


def test_a_conversation_is_the_same_from_every_file(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    said, made = talk('wo ist es, "dort"?', "Da.\nHier.", "[\u00e4]{followup}"), {}
    write_jsonl(tmp_path / "a.jsonl", [{"id": "x", "messages": said}])
    pq.write_table(pa.table({"id": ["x"], "messages": [said]}), tmp_path / "a.parquet")
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(["id", "messages"]), writer.writerow(["x", json.dumps(said)])
    for name in ("a.jsonl", "a.parquet", "a.csv"):
        _prepare_files(
            "dialogues", _PrepareConfig(train=str(tmp_path / name)), tmp_path / f"out-{name[2:]}"
        )
        made[name] = read_interactions(tmp_path / f"out-{name[2:]}/train.jsonl")
    assert (
        made["a.jsonl"] == made["a.parquet"] == made["a.csv"]
        and made["a.csv"][0].followup.text == "[ä]{followup}"
    )


# No row twice


def test_texts_are_compared_without_case_and_white_space(tmp_path):
    found = run(
        "prompts",
        [{"prompt": "Name a  bird"}, {"prompt": "name\na bird"}, {"prompt": "Name a fish"}],
        tmp_path,
        validation=[{"prompt": "NAME A FISH"}, {"prompt": "Hi"}, {"prompt": "hi"}],
    )
    assert [len(found[split][0]) for split in found] == [2, 1]
    assert found["train"][1] == {"the same again": 1} and found["validation"][1] == {
        "in train": 1,
        "the same again": 1,
    }


def test_a_conversation_of_train_is_not_in_validation_with_another_reply(tmp_path):
    found = run(
        "dialogues",
        [{"messages": talk("a", "b", "c")}],
        tmp_path,
        validation=[{"messages": talk("A", "other", "words")}, {"messages": talk("x", "y", "z")}],
    )
    assert found["validation"][2] == {"in train": 1} and len(found["validation"][0]) == 1


def test_the_same_prompt_with_another_followup_is_another_interaction(tmp_path):
    assert (
        len(
            run(
                "dialogues",
                [
                    {"messages": talk("a", "b", "c")},
                    {"messages": talk("a", "b", "d")},
                    {"messages": talk("a", "B", "C")},
                ],
                tmp_path,
            )["train"][0]
        )
        == 2
    )


def test_a_second_call_knows_nothing_of_the_first(tmp_path):
    "The published script kept what it had seen in a mutable default"
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "A"}]
    first, second = run("prompts", rows, tmp_path), run("prompts", rows, tmp_path)
    assert first == second and len(first["train"][0]) == 2


def test_import_reads_and_loads_nothing():
    "Two published scripts download their sets when they are imported"
    code = (
        "import sys, socket; socket.socket.connect = None; import "
        "humanlm.sdpo.preparation; print([m for m in ('torch', 'datasets', 'transformers', "
        "'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# Counts, limits and files


def test_counts_add_up_and_are_kept(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(
        to_json({"messages": talk("a", "b", "c")}).encode()
        + b'\n{"messages": \n'
        + b'{"messages": []}\n'
        + b'{"messages": [], "x": "\xff"}\n'
    )
    tallies = _prepare_files(
        "dialogues", _PrepareConfig(train=str(tmp_path / "in.jsonl")), tmp_path / "out"
    )
    assert tallies["train"].lines() == {
        "rows read": 4,
        "row: too few messages": 2,
        "row: broken JSON": 1,
        "replies found": 1,
        "kept": 1,
        "changed: wrong encoding": 1,
    }
    kept = json.loads((tmp_path / "out/prepare.json").read_text())
    assert (
        kept["kind"] == "dialogues"
        and kept["splits"]["train"]["counts"] == tallies["train"].lines()
        and kept["settings"]["history"] == 5
    )
    assert "in.jsonl, row 2" in str(kept["splits"]["train"]["examples"]["rows"]["broken JSON"])


def test_a_table_of_hostile_examples_stays_a_table(tmp_path):
    rows = [
        {"prompt": "<script>|x|</script>"},
        {"prompt": "| a | b |\n|---|"},
        {"prompt": "\ud800"},
        {"prompt": ""},
    ]
    write_jsonl(tmp_path / "in.jsonl", rows)
    made = _tally_table(
        _prepare_files(
            "prompts", _PrepareConfig(train=str(tmp_path / "in.jsonl")), tmp_path / "out"
        )
    )
    assert [row[0] for row in made.rows] == [
        "rows read",
        "row: empty prompt",
        "kept",
        "changed: wrong encoding",
    ]
    assert [p["messages"][0]["content"] for p in read_prompts(tmp_path / "out/train.jsonl")][
        :2
    ] == ["<script>|x|</script>", "| a | b |\n|---|"]


def test_a_limit_mixes_rows_with_the_seed_and_stops(tmp_path):
    rows = [{"prompt": f"p{i}"} for i in range(50)]
    first, again, other = (
        run("prompts", rows, tmp_path, limit=5, seed=seed)["train"][0] for seed in (1, 1, 2)
    )
    assert (
        first == again != other
        and len(first) == len(other) == 5
        and first != [{"id": f"in-{i}", "messages": talk(f"p{i - 1}")} for i in range(1, 6)]
    )
    assert len(run("prompts", rows, tmp_path, limit=500)["train"][0]) == 50
    found = run(
        "dialogues",
        [{"messages": talk(f"{i}", "b", "c", "d", "e")} for i in range(9)],
        tmp_path,
        limit=2,
    )["train"][0]
    assert (
        Counter(row["conversation_id"] for row in found).most_common()
        == [(name, 2) for name in dict.fromkeys(row["conversation_id"] for row in found)]
        and len(found) == 4
    )


def test_a_limit_reads_no_further_than_it_must(tmp_path):
    taken = []
    rows = _mixed((taken.append(i) or i for i in range(1000)), 0, window=10)
    assert [next(rows) for _ in range(5)] and len(taken) == 14
    assert sorted(_mixed(iter(range(100)), 3, window=7)) == list(range(100))


def test_files_are_whole_or_absent(tmp_path):
    run("prompts", [{"prompt": "a"}], tmp_path)
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert sorted(before) == ["prepare.json", "train.jsonl"]
    with pytest.raises(DataError, match="Nothing of .*val.jsonl can be used as prompts"):
        run("prompts", [{"prompt": "b"}], tmp_path, validation=[{"prompt": ""}])
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out", "val.jsonl"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("dear")
    with pytest.raises(ConfigError, match="thesis.tex"):
        run("prompts", [{"prompt": "a"}], tmp_path)
    assert (tmp_path / "out/thesis.tex").read_text() == "dear"


def test_settings_that_cannot_be():
    for wrong in (
        {"limit": 0},
        {"history": 0},
        {"max_chars": 100_001},
        {"max_message_chars": -1},
        {"max_prompt_chars": 200_000},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            _PrepareConfig(**wrong)


# The command


def test_the_command_says_what_it_did(tmp_path, capsys):
    write_jsonl(
        tmp_path / "log.jsonl", [{"messages": talk("a", "b", "c")}, {"messages": talk("a")}]
    )
    assert (
        main(
            [
                "prepare",
                "dialogues",
                "--prepare.train",
                str(tmp_path / "log.jsonl"),
                "--prepare.out",
                str(tmp_path / "made"),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert (
        "too few messages" in printed
        and str(tmp_path / "made/train.jsonl") in printed
        and "kept" in printed
    )
    assert [i.followup.text for i in read_interactions(tmp_path / "made/train.jsonl")] == ["c"]


def test_a_dry_run_writes_nothing_and_calls_nobody(tmp_path, capsys):
    write_jsonl(tmp_path / "log.jsonl", [{"prompt": "a"}])
    assert (
        main(
            [
                "prepare",
                "prompts",
                "--prepare.train",
                str(tmp_path / "log.jsonl"),
                "--prepare.out",
                str(tmp_path / "made"),
                "--dry-run",
            ]
        )
        == 0
    )
    assert "0, ~$0.00" in capsys.readouterr().out and not (tmp_path / "made").exists()
    assert main(["prepare", "tldr", "--dry-run"]) == 0
    assert "openai/summarize_from_feedback on the Hub" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line, said",
    [
        ([], "Name one kind"),
        (["tldrr"], "Did you mean 'tldr'"),
        (["prompts"], "--prepare.train"),
        (["tldr", "prompts"], "Name one kind"),
        (["prompts", "--prepare.train", "missing.jsonl"], "no such file"),
        (["prompts", "--prepare.histroy", "3"], "prepare.history"),
    ],
)
def test_a_wrong_line_says_what_is_right(line, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *line]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.hub])
def test_a_set_that_cannot_be_had_is_one_sentence(kind, tmp_path, capsys):
    assert main(["prepare", kind, "--prepare.out", str(tmp_path / "made")]) == 2  # conftest: no hub
    said = capsys.readouterr().err
    assert (
        said.startswith(f"error: Cannot read {KINDS[kind].hub} from the hub")
        and said.count("\n") == 1
        and not (tmp_path / "made").exists()
    )


def test_a_hub_that_refuses_is_asked_once(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"} | {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "humanlm.sdpo",
            "prepare",
            "tldr",
            "--prepare.out",
            str(tmp_path / "made"),
        ],
        capture_output=True,
        text=True,
        env=env,
    )
    assert (
        done.returncode == 2
        and "refused" in done.stderr
        and done.stderr.count("\n") == 1
        and not (tmp_path / "made").exists()
    )


# Reading prompts


def test_prompts_of_both_forms_and_interactions_are_read(tmp_path):
    write_jsonl(
        tmp_path / "p.jsonl",
        [
            {"prompt": "a"},
            {"id": "own", "messages": talk("a", "b", "c"), "followup": "d"},
            {"prompt": "e", "followup": " "},
            {"id": 0, "prompt": "f"},
        ],
    )
    assert read_prompts(tmp_path / "p.jsonl") == [
        {"id": "1", "messages": talk("a")},
        {"id": "own", "messages": talk("a", "b", "c"), "followup": "d"},
        {"id": "3", "messages": talk("e")},
        {"id": "0", "messages": talk("f")},
    ]
    run("dialogues", [{"id": "x", "messages": talk("a", "b", "c")}], tmp_path)
    assert read_prompts(tmp_path / "out/train.jsonl") == [
        {"id": "x_1", "messages": talk("a"), "followup": "c", "conversation_id": "x"}
    ]


@pytest.mark.parametrize(
    "row, said",
    [
        ({"text": "a"}, "no prompt"),
        ({"prompt": 3}, "no prompt"),
        ({"prompt": ""}, "empty prompt"),
        ({"messages": talk("a", "b")}, "the last message is of assistant"),
        ({"prompt": "a", "followup": 3}, "must hold text"),
        ({"prompt": "a", "followup": "x" * 100_001}, "too long"),
        ({"prompt": "x" * 100_001}, "too long"),
    ],
)
def test_a_wrong_prompt_is_named_with_file_and_row(row, said, tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": "fine"}, row])
    with pytest.raises(DataError, match=rf"p\.jsonl, row 2: .*{said}"):
        read_prompts(tmp_path / "p.jsonl")


def test_an_empty_file_holds_no_prompt(tmp_path):
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_prompts(tmp_path / "q.jsonl")
