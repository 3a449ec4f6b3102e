"What stands beside the numbers of models: states that can be read, replies of people, shares."

from dataclasses import replace

import numpy as np
import pytest

from humanlm.alignment.evaluation import (
    PEOPLE,
    _people_texts,
    judge_texts,
    measured,
    tables,
)
from humanlm.core.basics import run_sync
from humanlm.core.records import Example, Message, Persona
from humanlm.evaluation.measured import results
from humanlm.rewards.judge_settings import (
    OwnJudge,
)
from humanlm.rewards.judges import EmbedJudge, RuleJudge

SAID = (
    "I love this idea, it is great!",
    "No. That makes me angry, stop it.",
    "Could you please tell me more?",
    "Well, I suppose it could work, maybe.",
    "Use the old one instead, it never broke.",
    "Thanks, that is kind of you.",
)


def row(id, user, place, reply, order, split="train"):
    talk = (Message(f"{place}-root", "user", "asker", f"What about {place}?"),)
    return Example(id, "chat", split, user, place, Persona(user), talk, reply, order)


ROWS = [row(f"e{i}", f"u{i}", f"c{i}", text, i, "test") for i, text in enumerate(SAID)]


def letters(texts):
    counts = np.array([[1e-9 + t.lower().count(c) for c in "abcdefghiklmnoprstuwy"] for t in texts])
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def declared(request):
    return {id: len(text) % 7 / 7 for id, text in request.candidates.items()}


declared.reads = ()


def by_level(request):
    "Judge of one's own that looks for the level in the text"
    return {id: (len(text) + len(request.level)) % 5 / 5 for id, text in request.candidates.items()}


JUDGES = {
    "sentence vectors": (EmbedJudge(letters), False),
    "one that declares it": (OwnJudge(declared), False),
    "rules": (RuleJudge(), True),
    "one that looks at the level": (OwnJudge(by_level), True),
}


def compared(judge, states=("stance", "goal", "communication")):
    said = {
        name: [{"response": SAID[(i + shift) % 6] + tail} for i in range(6)]
        for name, shift, tail in (("one", 1, ""), ("two", 2, " I say so."))
    }
    models = {
        name: run_sync(judge_texts(ROWS, texts, judge, states=states))
        for name, texts in said.items()
    }
    return results({name: measured(own, ROWS) for name, own in models.items()}, 50)


@pytest.mark.parametrize("name", JUDGES)
def test_states_read_from_replies_are_measured_or_absent_and_never_the_reply_again(name):
    judge, reads = JUDGES[name]
    found = compared(judge)
    metrics = ["response_alignment", "reply_state_alignment"][: 1 + reads]
    assert list(dict.fromkeys(r.metric for r in found.rows)) == metrics
    assert tables(found.rows)


# ---- replies of people

POOL = [
    row("t1", "ann", "c1", "yes", 1),
    row("t2", "bob", "c1", "no never", 2),
    row("t3", "bob", "c2", "a longer reply than that", 3),
    row("t4", "cat", "c3", "yes", 4),
    row("t5", "ann", "c4", "three words here", 5),
    row("t6", "dan", "c5", "four words are here", 6),
    row("h1", "ann", "c6", "the real one", 7, "test"),
    row("h2", "eve", "c6", "another one", 8, "test"),
    row("h3", "bob", "c7", "gold", 9, "test"),
    row("t9", "bob", "c8", "later than that", 10),
]
HELD = [e for e in POOL if e.split == "test"]


def test_replies_of_people_are_those_of_others_here_of_the_same_elsewhere_and_one_for_all():
    here, elsewhere, constant = (
        [text.get("response") for text in _people_texts(HELD, POOL)[name]] for name in PEOPLE
    )
    assert here[:2] == ["another one", "the real one"]  # to the same message
    own = {e.reply for e in POOL if e.user_id == "bob"}
    assert here[2] in {e.reply for e in POOL if e.split == "train"} - own
    assert elsewhere == ["three words here", None, "a longer reply than that"]  # none of later
    assert constant == ["yes"] * 3


def test_only_replies_of_the_same_person_depend_on_who_is_asked_and_none_on_the_answer():
    others = [replace(e, reply="x " * 30) if e in HELD else e for e in POOL]
    before, after = _people_texts(HELD[2:], POOL), _people_texts(others[8:9], others)
    assert before == after
