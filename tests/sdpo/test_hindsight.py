"""The two contexts of a reply: what survives a budget, whose ids they are, what hostile text cannot do, and the record on disk."""
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from humanlm.core.basics import ConfigError, DataError, to_dict, write_jsonl
from humanlm.data.files import Faults
from humanlm.models.weights import end_id, render, train_tokenizer
from humanlm.sdpo.hindsight import (
    MAX_CHARS, MAX_MESSAGES, PROBLEMS, TEMPLATE, AssistantReply, Followup, HindsightConfig, HindsightError, Interaction, contexts, fit_messages,
    hindsight_messages, problem, read_interactions, reply_ids, write_interactions,
)

TEXTS = ["Where can I park near the harbour? Behind the customs house, open until ten.", "too long, just the name please", TEMPLATE] * 10
ODD = ["<|im_end|>", "<|im_start|>assistant\n", "{followup}", TEMPLATE, "{{ messages }}{% raw %}", "[Known in advance]\n\n", "\ud800", "a\x00b\x1b[2J", "\u202eevil\u202c", "\ufeff",
       "👩‍👩‍👧 e\u0301 ﷽", "<think>\n\n</think>", "\r\n\r\n", "\ue0001\ue001", "<|endoftext|>", "</s>"]


@pytest.fixture(scope="module", params=["chatml", "humanlm"])
def tok(request): return train_tokenizer(TEXTS, 480, template=request.param)


@pytest.fixture(scope="module")
def chatml(): return train_tokenizer(TEXTS, 480, template="chatml")


def say(*said): return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def plain(tokenizer, messages): return render(tokenizer, messages, speaker="", thinking=False)


def after(tokenizer):
    "The ids in which every prompt ends: the reply begins there"
    a, b = plain(tokenizer, say("a")), plain(tokenizer, say("b c"))
    n = next(i for i in range(1, len(a)) if a[-i] != b[-i]) - 1
    assert n > 1
    return a[-n:]


def interaction(messages=None, reply="There.", followup="thanks", **more):
    return Interaction("i", tuple(messages or say("where?")), AssistantReply(reply), Followup(followup), **more)


# What survives a budget

@given(turns=st.integers(0, 12), size=st.integers(1, 40), limit=st.integers(100, 400))
def test_followup_and_generation_prompt_survive_any_history(chatml, turns, size, limit):
    messages = say(*["park near the harbour " * size] * (2 * turns), "and now? " * size + "END")
    found, block = contexts(chatml, messages, "just the name please", limit=limit), plain(chatml, say(TEMPLATE.replace("{followup}", "just the name please")))
    shown = chatml.decode(found.hindsight)
    assert len(found.plain) <= limit and len(found.hindsight) <= limit + len(block)
    assert shown.count("just the name please") == 1 and "END" in shown and "END" in chatml.decode(found.plain)
    assert found.plain[-len(after(chatml)):] == found.hindsight[-len(after(chatml)):] == after(chatml)


@pytest.mark.parametrize("limit", [90, 130, 200, 400, 2000])
def test_both_contexts_hold_the_same_history(tok, limit):
    messages = [{"role": "system", "content": "Be brief."}, *say(*[f"number {i} " * 9 for i in range(9)])]
    found, kept = contexts(tok, messages, "shorter", limit=limit), fit_messages(tok, messages, limit)
    assert found.plain == plain(tok, kept) and found.hindsight == plain(tok, hindsight_messages(kept, "shorter"))
    assert kept[0]["content"] == "Be brief." and kept[-1]["role"] == "user" and kept[1]["role"] == "user"
    assert kept[1:-1] == messages[len(messages) - len(kept) + 1:-1], "the newest turns stay"
    assert (limit < 2000) or kept == messages


def test_what_fits_is_not_cut_and_one_token_less_is(chatml):
    messages = say("a", "b", "c", "d", "e")
    size = len(plain(chatml, messages))
    assert fit_messages(chatml, messages, size) == messages and fit_messages(chatml, messages, size - 1) == messages[2:]


@pytest.mark.parametrize("limit", [1, 5, 20])
def test_too_small_a_budget_raises(tok, limit):
    with pytest.raises(HindsightError, match="Raise model.max_prompt_tokens"): contexts(tok, say("where can i park " * 30), "ok", limit=limit)
    assert problem(say("where can i park " * 30), "x", "ok", tok, limit=limit) == "prompt too long"


def test_a_followup_is_never_cut(chatml):
    few = HindsightConfig(max_followup_tokens=4)
    with pytest.raises(HindsightError, match="follow-up too long"): contexts(chatml, say("a"), "one two three four five six", few)
    assert problem(say("a"), "x", "one two three four five six", chatml, few) == "follow-up too long"


# Replies

def test_ended_replies_end_and_cut_ones_do_not(tok):
    ended, cut = reply_ids(tok, AssistantReply("There. ")), reply_ids(tok, AssistantReply("There. ", finish_reason="length"))
    assert ended == [*cut, end_id(tok)] and end_id(tok) not in cut
    assert reply_ids(tok, AssistantReply("There, behind the house."), limit=3) == reply_ids(tok, AssistantReply("There, behind the house."))[:3]


def test_ids_that_were_drawn_are_never_tokenised_again(chatml):
    whole = chatml.encode("house", add_special_tokens=False)
    single = [i for c in "house" for i in chatml.encode(c, add_special_tokens=False)]
    assert whole != single and chatml.decode(single) == "house"
    assert reply_ids(chatml, AssistantReply("house", tuple(single))) == single
    assert reply_ids(chatml, AssistantReply("something else", (7,), finish_reason="length")) == [7]
    with pytest.raises(HindsightError, match="another model drew it"): reply_ids(chatml, AssistantReply("x", (len(chatml),)))


def test_a_text_with_an_end_mark_holds_no_end(chatml):
    ids = reply_ids(chatml, AssistantReply("stop <|im_end|> here"))
    assert ids.count(end_id(chatml)) == 1 and ids[-1] == end_id(chatml)


# Text stays text

@given(st.lists(st.sampled_from([*ODD, " ", "no ", "word"]), min_size=1, max_size=6).map("".join))
def test_no_text_changes_the_frame(chatml, text):
    opening = chatml.encode("<|im_start|>", add_special_tokens=False)[0]
    clean = contexts(chatml, say("where?", "there", "sure?"), "yes").hindsight
    for messages, said in ((say("where?", "there", "sure?"), "x" + text), (say(text, "there", "sure?"), "yes"), (say("where?", text, "sure?"), "yes"), (say("where?", "there", "x" + text), "yes")):
        found = contexts(chatml, messages, said, HindsightConfig(max_followup_tokens=2000))
        for special in {opening, end_id(chatml)}: assert found.hindsight.count(special) == clean.count(special), (messages, said)
        assert found.hindsight[-len(after(chatml)):] == after(chatml)


@pytest.mark.parametrize("text", ODD)
def test_a_followup_is_shown_as_it_is(chatml, text):
    found = chatml.decode(contexts(chatml, say("where?"), "x" + text + "y").hindsight)
    assert found.count("x" + text.encode("utf-8", "replace").decode() + "y") == 1


def test_padding_side_and_pad_token_change_nothing(tok):
    from copy import deepcopy
    expected, ids = contexts(tok, say("a", "b", "c"), "d"), reply_ids(tok, AssistantReply("There."))
    for side in ("left", "right"):
        for pad in (tok.pad_token, tok.eos_token):
            other = deepcopy(tok)
            other.padding_side = other.truncation_side = side
            other.pad_token = pad
            assert contexts(other, say("a", "b", "c"), "d") == expected and reply_ids(other, AssistantReply("There.")) == ids


# The block

def test_the_block_lands_in_the_last_user_message_only():
    "The published collator added it to the last message whoever wrote that"
    messages = [{"role": "system", "content": "s"}, *say("a", "b", "c ")]
    found = hindsight_messages(messages, " d ")
    assert found[:-1] == messages[:-1] and found[-1] == {"role": "user", "content": "c" + TEMPLATE.replace("{followup}", "d")} and messages[-1]["content"] == "c "
    for wrong in ([], say("a", "b"), [{"role": "system", "content": "s"}]):
        with pytest.raises(HindsightError, match="must be the user's"): hindsight_messages(wrong, "d")


def test_the_reply_is_not_shown_to_the_teacher(chatml):
    found = contexts(chatml, say("where?"), "no")
    assert "There." not in chatml.decode(found.hindsight)


@pytest.mark.parametrize("template", ["no slot", "{followup}{followup}", "", "{ followup }"])
def test_a_template_has_one_slot(template):
    with pytest.raises(ConfigError, match=r"template must hold \{followup\} once"): HindsightConfig(template)


@pytest.mark.parametrize("messages, reply, followup, why", [
    (say("a"), "b", None, "no follow-up"), (say("a"), "b", " \n\u200b", "empty follow-up"), (say("a"), "", "c", "empty reply"), (say("a", "b"), "b", "c", "no user message"),
    (say(" "), "b", "c", "no user message"), ([], "b", "c", "no user message"), ([{"role": "tool", "content": "x"}, *say("a")], "b", "c", "unknown role"),
    ([*say("a", "b"), {"role": "system", "content": "s"}, *say("c")], "b", "c", "system message in the middle"), (say("a"), "b", "c", ""), ([{"role": "system", "content": "s"}, *say("a")], "b", "c", ""),
])
def test_why_an_interaction_moves_nothing(chatml, messages, reply, followup, why):
    assert problem(messages, reply, followup) == problem(messages, reply, followup, chatml) == why and (not why or why in PROBLEMS)


def test_a_reply_of_one_token_is_one(chatml): assert len(reply_ids(chatml, AssistantReply(".", finish_reason="length"))) == 1


# The record

@pytest.mark.parametrize("make", [
    lambda: Interaction("i", (), AssistantReply("a"), Followup("b")), lambda: interaction(say("a") * (MAX_MESSAGES + 1)), lambda: interaction(say("a", "b")),
    lambda: interaction([{"role": "user"}]), lambda: interaction([{"role": "user", "content": 3}]), lambda: interaction([{"role": "user", "content": "a", "tool_calls": []}]),
    lambda: interaction([{"role": "tool", "content": "a"}, *say("b")]), lambda: interaction(say("a" * (MAX_CHARS + 1))), lambda: interaction(reply="a" * (MAX_CHARS + 1)),
    lambda: Followup("a" * (MAX_CHARS + 1)), lambda: Followup("a", "dreamt"), lambda: AssistantReply("a", finish_reason="error"), lambda: AssistantReply("a", ()),
    lambda: AssistantReply("a", (-1,)), lambda: AssistantReply("a", (True,)), lambda: AssistantReply("a", (1, 2), (-1.0,)), lambda: AssistantReply("a", None, (-1.0,)),
    lambda: AssistantReply("a", (1,), (0.5,)), lambda: AssistantReply("a", (1,), (float("nan"),)), lambda: interaction([["role", "content"]]),
])
def test_a_record_is_bounded_and_says_what_is_wrong(make):
    with pytest.raises(HindsightError) as found: make()
    assert len(str(found.value)) < 400


def test_what_is_written_is_read(tmp_path):
    rows = [interaction(followup="\ud800 <b>"), replace(interaction(say("a", "b", "c"), style="no_emojis", sampling={"temperature": 1.0}, filters=("x",), turn=3),
                                                       completion=AssistantReply("d", (1, 2), (-0.5, -1e-9), "length", "m"), followup=Followup("e", "live"))]
    write_interactions(tmp_path / "i.jsonl", rows)
    faults = Faults()
    found = read_interactions(tmp_path / "i.jsonl", faults)
    assert found[1] == rows[1] and found[0].followup.text == "\ufffd <b>" and set(faults.counts) == {"wrong encoding"}


def test_a_broken_record_is_named_or_counted(tmp_path):
    sound, path, faults = to_dict(interaction()), tmp_path / "i.jsonl", Faults()
    for wrong, said in ((sound | {"completion": "x"}, "completion"), (sound | {"messages": say("a", "b")}, "the last one must be the user's"), (sound | {"extra": 1}, "extra"),
                        (sound | {"schema_version": 9}, "schema version 9"), ({"id": "x"}, "messages")):
        write_jsonl(path, [sound, wrong])
        with pytest.raises(DataError, match=f"i.jsonl, row 2: .*{said}"): read_interactions(path)
        assert len(read_interactions(path, faults)) == 1
    assert faults.counts == {"unusable interaction": 5}


def test_both_public_layouts_are_read(tmp_path):
    human, gpt = ({"from": role, "value": f"{role} says"} for role in ("human", "gpt"))
    feedback = {"id": "3_1", "original_conv_id": 3, "turn_id": 1, "prompt": [human], "completion": gpt, "user_response": {"from": "human", "value": "more"}, "prompt_len": 1,
                "completion_len": 8, "total_conv_len": 20}
    chat = {"id": "h_3", "conversation_id": "h", "row_idx": 4, "turn_id": 3, "model": "m", "timestamp": "2023", "prompt": [human, gpt, human], "completion": {"role": "assistant", "content": "c"},
            "user_response": {"content": "d", "role": "user"}, "user_response_len": 1}
    write_jsonl(tmp_path / "i.jsonl", [feedback, chat])
    first, second = read_interactions(tmp_path / "i.jsonl")
    assert (first.messages, first.completion.text, first.followup.text, first.conversation_id, first.turn) == (({"role": "user", "content": "human says"},), "gpt says", "more", "3", 1)
    assert ([m["role"] for m in second.messages], second.completion, second.followup.text, second.conversation_id) == (["user", "assistant", "user"], AssistantReply("c", model="m"), "d", "h")
    write_jsonl(tmp_path / "i.jsonl", [feedback, feedback | {"prompt": [human, gpt]}, feedback | {"user_response": None}, feedback | {"user_response": 3}])
    faults = Faults()
    found = read_interactions(tmp_path / "i.jsonl", faults)
    assert [i.followup.text for i in found] == ["more", ""] and faults.counts == {"unusable interaction": 2}
    assert problem(found[1].messages, found[1].completion.text, found[1].followup.text) == "empty follow-up"
