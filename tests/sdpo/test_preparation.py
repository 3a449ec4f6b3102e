"Prompts and interactions of logs: the rules of each set, every reason counted, whole files."

import csv
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError, read_jsonl, to_json, write_jsonl
from humanlm.data.files import RowFault
from humanlm.sdpo.__main__ import main
from humanlm.sdpo.hindsight import ROLES, is_blank, problem, read_interactions
from humanlm.sdpo.preparation import (
    HISTORY,
    KINDS,
    TLDR_MARK,
    TLDR_SYSTEM,
    _any_prompt,
    _helpsteer2,
    _interactions_of,
    _marked_turns,
    _prepare_files,
    _PrepareConfig,
    _Tally,
    _tldr,
    read_prompts,
)


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
    for info in (
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


def test_the_last_message_is_the_users_whatever_the_log_misses():
    "The published preparation left histories that end with the assistant"
    log = [
        {"role": "assistant", "content": "Welcome."},
        *talk("a", "b"),
        {"role": "assistant", "content": "b2"},
        *talk("c", "d", "e"),
    ]
    tally = _Tally()
    made = list(_interactions_of(log, "conv", tally))
    assert (
        tally.reply_faults.counts == {"missing turn": 2, "no follow-up": 1} and tally.replies == 4
    )
    assert [
        ([m["content"] for m in i.messages], i.completion.text, i.followup.text, i.filters)
        for i in made
    ] == [(["c"], "d", "e", ("history begins after a gap",))]


def test_system_messages():
    first = {"role": "system", "content": "Be brief."}
    made = list(_interactions_of([first, *talk(*"abcdefghi")], "conv"))
    assert [m["content"] for m in made[3].messages] == ["Be brief.", *"cdefg"]
    assert not made[3].filters
    tally = _Tally()
    made = list(
        _interactions_of([*talk("a", "b", "c"), first, *talk("d", "e", "f")], "conv", tally)
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
    made = list(_interactions_of(log, "conv", tally))
    assert tally.reply_faults.counts == {"empty reply": 1, "reply rests on a tool": 1}
    assert [([m["content"] for m in i.messages], i.completion.text, i.filters) for i in made] == [
        (["b"], "c", ("history begins after a gap",))
    ]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*ROLES, "tool"]),
            st.sampled_from(["", " \u200b", "text", "<|im_end|>", "\ud800", "{followup}"]),
        ),
        max_size=12,
    ),
)
def test_whatever_the_log_each_interaction_can_be_learned_from(log):
    messages, tally = [{"role": role, "content": text} for role, text in log], _Tally()
    made = list(_interactions_of(messages, "conv", tally))
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
            and len(own) <= HISTORY
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


def test_a_conversation_of_train_is_not_in_validation_with_another_reply(tmp_path):
    found = run(
        "dialogues",
        [{"messages": talk("a", "b", "c")}],
        tmp_path,
        validation=[{"messages": talk("A", "other", "words")}, {"messages": talk("x", "y", "z")}],
    )
    assert found["validation"][2] == {"in train": 1} and len(found["validation"][0]) == 1


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
    )
    assert "in.jsonl, row 2" in str(kept["splits"]["train"]["examples"]["rows"]["broken JSON"])


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


def test_files_are_whole_or_absent(tmp_path):
    run("prompts", [{"prompt": "a"}], tmp_path)
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert sorted(before) == ["prepare.json", "train.jsonl"]
    with pytest.raises(DataError, match="Nothing of .*val.jsonl can be used as prompts"):
        run("prompts", [{"prompt": "b"}], tmp_path, validation=[{"prompt": ""}])
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out", "val.jsonl"]


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
        (["tldrr"], "Did you mean 'tldr'"),
        (["prompts"], "--prepare.train"),
        (["prompts", "--prepare.train", "missing.jsonl"], "no such file"),
    ],
)
def test_a_wrong_line_says_what_is_right(line, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *line]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["tldr"])
def test_a_set_that_cannot_be_had_is_one_sentence(kind, tmp_path, capsys):
    assert main(["prepare", kind, "--prepare.out", str(tmp_path / "made")]) == 2  # conftest: no hub
    said = capsys.readouterr().err
    assert (
        said.startswith(f"error: Cannot read {KINDS[kind].hub} from the hub")
        and said.count("\n") == 1
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
        ({"prompt": "x" * 100_001}, "too long"),
    ],
)
def test_a_wrong_prompt_is_named_with_file_and_row(row, said, tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [{"prompt": "fine"}, row])
    with pytest.raises(DataError, match=rf"p\.jsonl, row 2: .*{said}"):
        read_prompts(tmp_path / "p.jsonl")
