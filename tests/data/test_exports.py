"A chat is read alike in whatever form it was exported, and odd exports lose or invent nothing."

import json
from collections import defaultdict

import chats
import pytest

from humanlm.build import main
from humanlm.core.basics import DataError
from humanlm.core.records import load_examples
from humanlm.data.files import Faults
from humanlm.data.rows import map_row
from humanlm.data.threads import import_threads

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


def slack_file(*messages):
    return json.dumps(
        [{"type": "message", "ts": f"16000000{n:02}.1"} | m for n, m in enumerate(messages)]
    )


ROOM = {"guild": {}, "channel": {"id": "5"}}
SLACK_USERS = '[{"id": "U1", "profile": {"display_name": "Ann Lee"}}, {"id": "U2", "name": "ben"}]'

# What is odd → files; author, text and place of what is answered, message by message
ODD = {
    "content in parts, a call and an instruction": (
        {
            "a.jsonl": talk(
                ("developer", "Be kind."),
                ("USER", [{"type": "text", "text": "hi"}, {"type": "image_url"}]),
                ("model", None),
                ("tool", "42"),
                ("model", [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "42"}]),
                ("USER", "ok"),
                user="ann",
            )
        },
        [("ann", "hi", None), ("assistant", "42", 0), ("ann", "ok", 1)],
    ),
    "a JSON file that is one conversation": (
        {"a.json": json.dumps(json.loads(talk(("user", "hi"), ("assistant", "yo")))["messages"])},
        [("a", "hi", None), ("assistant", "yo", 0)],
    ),
    "a tree with a hidden node": (
        {
            "conversations.json": json.dumps(
                [
                    {
                        "id": "c",
                        "mapping": {
                            "r": {"message": None, "parent": None},
                            "q": {
                                "parent": "r",
                                "message": {
                                    "author": {"role": "user"},
                                    "content": {"parts": ["hi"]},
                                },
                            },
                            "h": {"parent": "q", "message": {"author": {"role": "system"}}},
                            "a": {
                                "parent": "h",
                                "message": {
                                    "author": {"role": "assistant"},
                                    "content": {"parts": ["yo"]},
                                },
                            },
                        },
                    }
                ]
            )
        },
        [("conversations", "hi", None), ("assistant", "yo", 0)],
    ),
    "a thread beside its channel, mentions, joins": (
        {
            "users.json": SLACK_USERS,
            "g/2020-09-13.json": slack_file(
                {
                    "user": "U1",
                    "text": "hi <@U2> &amp; <https://x.y|all>",
                    "thread_ts": "1600000000.1",
                },
                {"user": "U2", "text": "joined", "subtype": "channel_join"},
                {"user": "U2", "text": "beside", "thread_ts": "1600000000.1"},
                {"user": "U1", "text": "beside too", "thread_ts": "1600000000.1"},
                {"user": "U2", "text": "main"},
            ),
        },
        [
            ("Ann Lee", "hi @ben & all", None),
            ("ben", "beside", 0),
            ("Ann Lee", "beside too", 1),
            ("ben", "main", 0),
        ],
    ),
    "a telephone of Germany, several lines, media": (
        {
            "c.txt": "05.12.20, 23:59 - Ann hat die Gruppe erstellt\n"
            "05.12.20, 23:59 - Ann: hi:\n\nyou\n"
            "06.12.20, 00:01 - +49 151 23: <Medien ausgeschlossen>\n"
            "06.12.20, 00:02 - +49 151 23: IMG-1.jpg (Datei angehängt)\n"
            "06.12.20, 00:03 - +49 151 23: na\n"
        },
        [("Ann", "hi:\n\nyou", None), ("+49 151 23", "na", 0)],
    ),
    "iOS with its marks": (
        {
            "_chat.txt": "\u200e[31.12.20, 23:59:58] G: \u200eEnde-zu-Ende\n"
            "[31.12.20, 23:59:59] Ann: hi\n"
            "\u200e[01.01.21, 00:00:10] Ben: \u200eimage omitted\n"
            "[01.01.21, 00:00:11] \u202aBen\u202c: yes @\u2068Ann\u2069 "
            "\u200e<This message was edited>\r\n"
        },
        [("Ann", "hi", None), ("Ben", "yes @Ann", 0)],
    ),
    "what the app writes in six languages, captions": (
        {
            "c.txt": "".join(
                f"05.12.20, 23:{n:02} - Ann: {text}\n"
                for n, text in enumerate(
                    (
                        "Diese Nachricht wurde gelöscht.",
                        "Du hast diese Nachricht gelöscht",
                        "Ce message a été supprimé",
                        "Eliminaste este mensaje.",
                        "Mensagem apagada",
                        "Questo messaggio è stato eliminato",
                        "This message was deleted by admin Ben",
                        "This message was deleted by mistake",
                        "You have deleted my plans!",
                        "IMG-1.jpg (file attached)\nthe sea",
                        "\u200eMy plan.pdf (fichier joint)\nread it",
                        "<Media omitted>\nand this",
                        "soon <Este mensaje fue editado>",
                        "I <3 you <big hug>",
                    )
                )
            )
        },
        [
            ("Ann", text, n - 1 if n else None)
            for n, text in enumerate(
                (
                    "This message was deleted by mistake",
                    "You have deleted my plans!",
                    "the sea",
                    "read it",
                    "and this",
                    "soon",
                    "I <3 you <big hug>",
                )
            )
        ],
    ),
    "speakers, and an empty conversation first": (
        {
            "d.jsonl": '{"turns": []}\n{"dialogue_id": 7, "turns": [{"speaker": "Ann", '
            '"utterance": "hi"}, {"speaker": "SYSTEM", "utterance": "x"}, '
            '{"speaker": "Ben", "utterance": "yo"}]}\n'
        },
        [("Ann", "hi", None), ("assistant", "x", 0), ("Ben", "yo", 1)],
    ),
    "one name of two people, a service, a forward": (
        {
            "result.json": json.dumps(
                {
                    "chats": {
                        "list": [
                            {
                                "id": 1,
                                "messages": [
                                    {"id": 1, "type": "service", "text": "", "from_id": "u"},
                                    {
                                        "id": 2,
                                        "type": "message",
                                        "from": "A",
                                        "from_id": "u1",
                                        "text": ["s ", {"text": "x.y"}],
                                    },
                                    {
                                        "id": 3,
                                        "type": "message",
                                        "from": "A",
                                        "from_id": "u2",
                                        "text": "me",
                                    },
                                    {
                                        "id": 4,
                                        "type": "message",
                                        "from": "A",
                                        "from_id": "u1",
                                        "text": "n",
                                        "forwarded_from": "N",
                                    },
                                ],
                            }
                        ]
                    }
                }
            )
        },
        [("A", "s x.y", None), ("A u2", "me", 0), ("", "n", 1)],
    ),
    "mails of one subject without ids": (
        {
            "m.mbox": "".join(
                f"From x Sat Jan  1 10:0{n}:00 2022\nFrom: {who}@x.example\n"
                f"Date: Sat, 1 Jan 2022 10:0{n}:00 +0000\n"
                f"Subject: {re}The old bridge\n\nThe words of {who}.\n\n"
                for n, (who, re) in enumerate([("ann", ""), ("ben", "AW: "), ("ann", "Re: ")])
            )
        },
        [
            ("ann@x.example", "The words of ann.", None),
            ("ben@x.example", "The words of ben.", 0),
            ("ann@x.example", "The words of ann.", 1),
        ],
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_exports_lose_nobody_and_invent_nothing(tmp_path, odd):
    files, expected = ODD[odd]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = tmp_path / next(iter(files)) if len(files) == 1 else tmp_path
    found = [m for t in import_threads(path, faults=Faults()) for m in t.messages]
    place = {m.id: n for n, m in enumerate(found)}
    answers = [place[m.parents[0]] if m.parents else None for m in found]
    assert [(m.name, m.content, a) for m, a in zip(found, answers)] == expected


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
    (thread,) = import_threads(tmp_path / "c.txt", tell=form.append)
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
    (thread,) = import_threads(tmp_path / "c.txt")
    (m,) = thread.messages
    assert (m.name, m.content, m.time) == ("Ann", "hi", 1677963900.0)


def test_a_text_that_is_no_chat_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("Milk, eggs\nand bread")
    with pytest.raises(DataError, match="WhatsApp"):
        import_threads(tmp_path / "notes.txt")


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
    from humanlm.evaluation.contests import chat_messages
    from humanlm.evaluation.dialogues import _turns
    from humanlm.sdpo.preparation import _dialogues

    said = [("developer", "Be kind."), (user, "hi"), (assistant, "yo"), (user, "ok then")]
    messages = json.loads(talk(*said))["messages"]
    (read,) = _dialogues({"messages": messages}, "x", Faults())
    assert [m["role"] for m in read.messages] == ["system", "user"] and read.completion.text == "yo"
    assert [m["role"] for m in chat_messages(messages[:2], "a chat")] == ["system", "user"]
    assert _turns(messages)[0] == ("hi", "ok then")
    raw = {
        "prompt": messages[:3],
        "completion": "ok then",
        "post_id": "p",
        "user_id": "u1",
        "timestamp": 1.7e9,
    }
    row = map_row("wildchat", raw)
    assert [m.role for m in row.messages] == [
        "system",
        "user",
        "assistant",
    ]
