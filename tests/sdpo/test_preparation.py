"Prompts and interactions of logs: the rules of each set, every reason counted, whole files."

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import write_jsonl
from humanlm.core.commands import main
from humanlm.data.files import Faults, RowFault
from humanlm.data.prepared import is_blank
from humanlm.sdpo.hindsight import PROBLEMS, ROLES, problem
from humanlm.sdpo.preparation import (
    HISTORY,
    KINDS,
    TLDR_SYSTEM,
    _helpsteer2,
    _interactions_of,
    _PrepareConfig,
    _splits,
    _tldr,
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


def run(kind, rows, folder, validation=None):
    "Prepare rows and give what was kept and counted"
    files = {"train": write_jsonl(folder / "train-in.jsonl", rows)}
    if validation is not None:
        files["validation"] = write_jsonl(folder / "validation-in.jsonl", validation)
    c = _PrepareConfig(**{split: str(file) for split, file in files.items()})
    return {
        split: (list(rows), named(counts, "row"), named(counts, "reply"))
        for split, counts, rows in _splits(KINDS[kind], c)
    }


def named(counts, what):
    "Reasons for which rows, or replies, were left out"
    return {
        name.partition(": ")[2]: n
        for name, n in counts.counts.items()
        if name.startswith(f"{what}: ")
    }


def reason(make, *args):
    with pytest.raises(RowFault) as found:
        make(*args)
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


# Interactions


def test_each_reply_between_two_user_messages_is_an_interaction():
    made = list(_interactions_of(talk(*"abcdefghi"), "conv", Faults()))
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
    tally = Faults()
    made = list(_interactions_of(log, "conv", tally))
    assert named(tally, "reply") == {"no user message": 2, "no follow-up": 1}
    assert tally.counts["replies found"] == 4
    assert [
        ([m["content"] for m in i.messages], i.completion.text, i.followup.text) for i in made
    ] == [(["c"], "d", "e")]


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
    messages, tally = [{"role": role, "content": text} for role, text in log], Faults()
    made = list(_interactions_of(messages, "conv", tally))
    assert (
        tally.counts["replies found"]
        == sum(role == "assistant" for role, _ in log)
        == len(made) + sum(named(tally, "reply").values())
    )
    assert {*named(tally, "reply")} <= {*PROBLEMS}
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
    assert [(r["id"], r["messages"][0]["content"][:2]) for r in kept] == [
        ("7_1", "a"),
        ("train-in-2_1", "p"),
        ("7_1", "uu"),
        ("7_3", "c"),
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


@pytest.mark.parametrize(
    "line, said",
    [
        (["tldrr"], "Did you mean 'tldr'"),
        (["dialogues"], "--prepare.train"),
        (["dialogues", "--prepare.train", "missing.jsonl"], "no such file"),
    ],
)
def test_a_wrong_line_says_what_is_right(line, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "followups", *line]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.glob("prepared/*"))
