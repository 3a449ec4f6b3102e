"An interaction and its two contexts: no text changes the structure, and what must stay does."

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError, to_json
from humanlm.data.files import Faults
from humanlm.models.config import train_tokenizer
from humanlm.sdpo.hindsight import (
    TEMPLATE,
    AssistantReply,
    Followup,
    Interaction,
    contexts,
    hindsight_messages,
    problem,
    read_interactions,
)

SYSTEM = {"role": "system", "content": "Answer briefly."}
ASKED = {"role": "user", "content": "Where can I park near the harbour?"}
REPLY = AssistantReply("Behind the old customs house.")
OPENING = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tok():
    return train_tokenizer(
        [
            TEMPLATE,
            SYSTEM["content"],
            ASKED["content"],
            REPLY.text,
            "too long, just the name please",
        ],
        template="chatml",
    )


def common_end(a, b):
    return next(
        (i for i in range(min(len(a), len(b))) if a[-1 - i] != b[-1 - i]), min(len(a), len(b))
    )


@settings(max_examples=50)
@given(text=st.text(max_size=60), question=st.text(max_size=60))
def test_any_text_stays_text_and_the_two_contexts_end_alike(tok, text, question):
    messages = [{"role": "user", "content": "Q" + question + "?"}]
    if problem(messages, "-", text):
        return
    both = contexts(tok, messages, text)
    opening = tok.convert_tokens_to_ids("<|im_start|>")
    assert [both.hindsight.count(opening), both.plain.count(opening)] == [2, 2]
    assert common_end(*both) >= len(tok.encode("<|im_end|>\n" + OPENING, add_special_tokens=False))
    body = tok.decode(both.hindsight).split("<|im_start|>user\n", 1)[1]
    shown = (
        hindsight_messages(messages, text)[-1]["content"]
        .strip()
        .encode("utf-8", "replace")
        .decode()
    )
    assert body.startswith(shown)


# -- the reply


# -- the record


FULL = Interaction(
    "c_1",
    (SYSTEM, ASKED),
    AssistantReply("Yes \u2028 é.", (3, 4, 5), "length", "tiny"),
    Followup("no", "live"),
    "c",
    "u",
    3,
)


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("turn", "1", "Expected `int`, got `str` - at `$.turn`"),
        ("messages", [{"role": "admin", "content": "x"}], "expected one of the roles"),
        ("messages", [{"role": "assistant", "content": "x"}], "the last one must be the user's"),
        ("completion", "yes", "`$.completion`"),
        (
            "completion",
            {"text": "y", "finish_reason": "eos"},
            "Invalid enum value 'eos'",
        ),
        ("styl", "x", "has no field 'styl'"),
        ("schema_version", 9, "Update humanlm"),
    ],
)
def test_a_wrong_field_is_refused_with_file_row_and_field(tmp_path, path, value, said):
    file, good = tmp_path / "log.jsonl", json.loads(to_json(replace(FULL, completion=REPLY)))
    file.write_text("\n".join(map(json.dumps, (good, good | {path: value}))))
    with pytest.raises(DataError) as caught:
        read_interactions(file)
    assert said in str(caught.value) and f"{file}, row 2" in str(caught.value)
    assert len(read_interactions(file, faults := Faults())) == 1 and faults.counts == {
        "unusable interaction": 1
    }


@pytest.mark.parametrize("shape", ["from", "role"])
def test_the_two_public_layouts_are_read(tmp_path, shape):
    key, human, gpt = (
        ("value", "human", "gpt") if shape == "from" else ("content", "user", "assistant")
    )

    def said(role, text):
        return {shape: role, key: text}

    row = {
        "id": "7_3",
        "original_conv_id": 7,
        "turn_id": 3,
        "prompt": [said(human, "a"), said(gpt, "b"), said(human, "c")],
        "completion": said(gpt, "d"),
        "user_response": said(human, "e"),
        "prompt_len": 3,
        "completion_len": 1,
        "total_conv_len": 5,
    }
    file = tmp_path / "public.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"prompt": row["prompt"][:2]}) + "\n")
    [found] = read_interactions(file, faults := Faults())
    assert [m["role"] for m in found.messages] == ["user", "assistant", "user"]
    assert (found.completion.text, found.followup.text, found.conversation_id, found.turn) == (
        "d",
        "e",
        "7",
        3,
    )
    assert faults.counts == {"unusable interaction": 1}  # a history that ends with the assistant
