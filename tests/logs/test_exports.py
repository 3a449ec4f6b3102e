"A chat is read alike in whatever form it was exported, and odd exports lose or invent nothing."

from collections import defaultdict

import chats
import pytest

from humanlm.data.records import load_examples
from humanlm.humanual import main

FLAGS = ["--persona.model", "none", "--build.out"]


def build(path, out, *more):
    "Build a set by one command; give its examples"
    assert main(["build", "--build.path", str(path), *FLAGS, str(out), *more]) == 0
    return load_examples(out / "examples")


def content(examples):
    "What is learned, whoever says it: contexts and replies, and which replies are one person's"
    people = defaultdict(set)
    for e in examples:
        people[e.user_id].add(e.reply)
    rows = {
        (*((m.role, m.name == e.user_id, m.content) for m in e.context), e.reply) for e in examples
    }
    return rows, {frozenset(replies) for replies in people.values()}


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    "The same chats built from each form"
    folder = tmp_path_factory.mktemp("eight")
    paths = {form: chats.write(form, folder / f"in{n}") for n, form in enumerate(chats.FORMS)}
    return {form: (path, build(path, folder / f"out{path.stem}{form[:3]}")) for form, path in paths.items()}


@pytest.mark.parametrize("form", chats.FORMS)
def test_eight_forms_of_a_chat_give_the_same_examples(eight, form, capsys):
    path, examples = eight[form]
    said = chats.chats()
    replies = {m.text for k, m in enumerate(said) if k % 9 and m.by == m.person}
    assert len(examples) == 200 and {e.reply for e in examples} == replies
    assert content(examples) == content(eight["a table"][1])
    assert main(["build", "--build.path", str(path), *FLAGS, str(path) + "_out", "--dry-run"]) == 0
    assert f"read as     {form}" in capsys.readouterr().out
    assert not any(name in repr(examples) for name in chats.PEOPLE)
