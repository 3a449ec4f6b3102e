"A chat is read alike in whatever form it was exported, and odd exports lose or invent nothing."

import json
from collections import defaultdict

import chats
import pytest

from humanlm.build import main
from humanlm.core.basics import DataError
from humanlm.core.records import load_examples
from humanlm.data.files import Faults
from humanlm.data.rows import _map_row
from humanlm.data.threads import _import_threads

FLAGS = ["--persona.model", "none", "--build.out"]


def build(path, out, *more):
    "Build a set by one command; give its examples"
    assert main(["--build.path", str(path), *FLAGS, str(out), *more]) == 0
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
    return {
        form: (path, build(path, folder / f"out{path.stem}{form[:3]}"))
        for form, path in paths.items()
    }


@pytest.mark.parametrize("form", chats.FORMS)
def test_eight_forms_of_a_chat_give_the_same_examples(eight, form, capsys):
    path, examples = eight[form]
    said = chats.chats()
    replies = {m.text for k, m in enumerate(said) if k % 9 and m.by == m.person}
    assert len(examples) == 200 and {e.reply for e in examples} == replies
    assert content(examples) == content(eight["a table"][1])
    assert main(["--build.path", str(path), *FLAGS, str(path) + "_out", "--dry-run"]) == 0
    assert f"read as     {form}" in capsys.readouterr().out
    assert not any(name in repr(examples) for name in chats.PEOPLE)


def talk(*messages, **names):
    "A conversation with roles"
    said = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"messages": said} | names)


def test_speakers_and_nested_messages_have_their_roles(tmp_path):
    said = [{"speaker": "USER", "text": "hi"}, {"speaker": "SYSTEM", "text": "yo"}]
    said.append({"data": {"role": "user", "content": "ok"}})
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": said}))
    (thread,) = _import_threads(tmp_path / "c.jsonl")
    assert [m.role for m in thread.messages] == ["user", "assistant", "user"]


# What is odd → files; author, text and place of what is answered, message by message


@pytest.mark.parametrize(
    "dates, first",
    [
        ("12/31/20 1/2/21", False),
        ("31/12/20 1/2/21", True),
        ("1/2/21 2/2/21 3/2/21", True),  # the months would run back
        ("2020-12-31 2021-01-02", True),
    ],
)
def test_days_and_months_are_told_by_the_file(tmp_path, dates, first):
    (tmp_path / "c.txt").write_text("".join(f"{d}, 10:00 - Ann: hi\n" for d in dates.split()))
    form = []
    (thread,) = _import_threads(tmp_path / "c.txt", tell=form.append)
    times = [m.time for m in thread.messages]
    assert times == sorted(times) and (("days first" in form[0]) == first or "-" in dates)


@pytest.mark.parametrize(
    "head",
    [
        "04/03/2023 à 21:05 - ",
        "4/3/2023, 9:05 μ.μ. - ",
        "2023. 3. 4. 오후 9:05, ",
        "2023. 3. 4. 오후 9:05 - ",
        "4/3/23, 9:05 p. m. - ",
        "4/3/23, 9:05 pm - ",
        "3/4/23, 9:05 PM - ",
        "4.3.2023 klo 21.05 - ",
        "4.03.23 г., 21:05 - ",
        "[2023/3/4 下午9:05:00] ",
        "٤\u200f/٣\u200f/٢٠٢٣، ٩:٠٥ م - ",
        "2023-03-04 21 h 05 - ",
        "4/3/2566 21:05 - ",
    ],
)
def test_dates_are_read_in_the_spelling_of_a_country(tmp_path, head):
    (tmp_path / "c.txt").write_text(f"{head}Ann : hi\n")
    (thread,) = _import_threads(tmp_path / "c.txt")
    (m,) = thread.messages
    assert (m.name, m.content, m.time) == ("Ann", "hi", 1677963900.0)


def test_a_text_that_is_no_chat_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("Milk, eggs\nand bread")
    with pytest.raises(DataError, match="WhatsApp"):
        _import_threads(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "user, assistant",
    [
        ("USER", "ASSISTANT"),
        ("user", "model"),
        ("human", "gpt"),
        ("Customer", "Agent"),
        ("User", "Bot"),
        ("HumanMessage", "AIMessage"),
        ("prompter", "gpt-4-0613"),
        ("user", "chatbot"),
    ],
)
def test_roles_are_read_in_every_spelling(tmp_path, user, assistant):
    from humanlm.evaluation.answering import _chat_messages
    from humanlm.evaluation.dialogues import _turns
    from humanlm.sdpo.preparation import _dialogues

    said = [("developer", "Be kind."), (user, "hi"), (assistant, "yo"), (user, "ok then")]
    messages = json.loads(talk(*said))["messages"]
    (read,) = _dialogues({"messages": messages}, "x", Faults())
    assert [m["role"] for m in read.messages] == ["system", "user"] and read.completion.text == "yo"
    assert [m["role"] for m in _chat_messages(messages[:2], "a chat")] == ["system", "user"]
    assert _turns(messages)[0] == ("hi", "ok then")
    raw = {
        "prompt": messages[:3],
        "completion": "ok then",
        "post_id": "p",
        "user_id": "u1",
        "timestamp": 1.7e9,
    }
    row = _map_row("wildchat", raw)
    assert [m.role for m in row.messages] == [
        "system",
        "user",
        "assistant",
    ]
