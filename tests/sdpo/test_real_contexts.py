"""Real dialogues through the record and both contexts: of people with assistants, and of a simulated user (needs HUMANLM_DATA)."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from humanlm.models.config import train_tokenizer
from humanlm.models.prompts import end_id
from humanlm.sdpo.hindsight import (
    TEMPLATE,
    AssistantReply,
    Followup,
    HindsightConfig,
    Interaction,
    as_messages,
    contexts,
    problem,
    read_interactions,
    reply_ids,
    write_interactions,
)

FOLDER = Path(os.environ.get("HUMANLM_DATA", "absent")) / "user_dialogues"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs HUMANLM_DATA with user_dialogues"
)
LIMIT = 600


@pytest.fixture(scope="module")
def triples():
    "Every tenth dialogue, each assistant's message that a user follows"
    found = []
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines()[::10]:
            row = json.loads(line)
            said = as_messages(row["messages"])
            found += [
                (row["id"], i, said[:i], said[i]["content"], said[i + 1]["content"])
                for i in range(len(said) - 1)
                if (said[i]["role"], said[i + 1]["role"]) == ("assistant", "user")
            ]
    return found


@pytest.fixture(scope="module")
def tok(triples):
    return train_tokenizer(
        [TEMPLATE, *(said[-1]["content"] for _, _, said, *_ in triples[::5])],
        1024,
        template="chatml",
    )


def test_real_dialogues_keep_their_frame_and_lose_only_what_is_counted(triples, tok, tmp_path):
    reasons, kept, config = Counter(), [], HindsightConfig(max_followup_tokens=200)
    opening, closing = (tok.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>"))
    for name, i, said, reply, next_ in triples:
        reason = problem(said, reply, next_, tok, config, LIMIT)
        reasons[reason] += 1
        if reason:
            continue
        both = contexts(tok, said, next_, config, LIMIT)
        block = TEMPLATE.replace("{followup}", next_.strip())
        assert len(both.plain) <= LIMIT and tok.decode(both.hindsight).count(block) == 1
        assert tok.decode(both.hindsight).replace(block, "") == tok.decode(both.plain)
        assert [sum(t == mark for t in both.plain) for mark in (opening, closing)] == [
            sum(t == mark for t in both.hindsight) for mark in (opening, closing)
        ]
        ids = reply_ids(tok, AssistantReply(reply))
        assert ids[-1] == end_id(tok) == closing and tok.decode(ids[:-1]) == reply.rstrip()
        kept.append(
            Interaction(
                f"{name}_{i}", tuple(said), AssistantReply(reply), Followup(next_), name, turn=i
            )
        )
    assert len(kept) == reasons[""] > 50 and sum(reasons.values()) == len(triples)
    assert reasons["follow-up too long"] > 0 and set(reasons) <= {
        "",
        "follow-up too long",
        "no user message",
        "empty follow-up",
        "empty reply",
    }
    assert read_interactions(write_interactions(tmp_path / "real.jsonl", kept)) == kept
