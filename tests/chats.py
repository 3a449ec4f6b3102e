"One set of invented chats between ten people and an assistant, written in eight export forms."

import csv
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

PEOPLE = (
    "ann_07",
    "ben_2",
    "cleo_x1",
    "dev_44",
    "emil_9",
    "fay_31",
    "gus_5",
    "hana_8",
    "ivo_66",
    "jun_3",
)
ASKS = (
    "My {thing} has not come yet.",
    "The {thing} I got is broken.",
    "Can I send the {thing} back?",
)
TELLS = (
    "Your {thing} left us on {day}.",
    "I see the {thing} here.",
    "A new {thing} ships on {day}.",
)
SAYS = (
    "That is too late, {day} I am away.",
    "Fine, then I wait until {day}.",
    "You said that before!",
)
THINGS, DAYS = "lamp kettle desk chair clock mirror".split(), "Monday Tuesday Friday Sunday".split()
START, DAY = 1_700_000_000, 86400


class Said(NamedTuple):
    "One message"

    session: int
    person: str  # whose session it is
    by: str  # the person, or assistant
    text: str
    time: int
    number: int


def chats() -> list[Said]:
    "Fifty sessions on fifty days; in each a person asks, and answers the assistant four times"
    rng, said = random.Random(0), []
    for session in range(50):
        person = PEOPLE[session * 7 % 10]
        for turn in range(9):
            kind = ASKS if not turn else TELLS if turn % 2 else SAYS
            text = rng.choice(kind).format(thing=rng.choice(THINGS), day=rng.choice(DAYS))
            text += f" Order {session * 10 + turn}."
            text += f"\nAnd another line about {rng.choice(THINGS)}s." if turn % 5 == 4 else ""
            by = "assistant" if turn % 2 else person
            time = START + session * DAY + turn * 120
            said.append(Said(session, person, by, text, time, len(said) + 1))
    return said


def stamp(m: Said, form: str) -> str:
    return datetime.fromtimestamp(m.time, UTC).strftime(form)


def lines(said: list[Said]):
    "Messages with a line each, as people type them"
    return [m._replace(text=text) for m in said for text in m.text.split("\n")]


def flat_csv(said, folder):
    with open(folder / "chat.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("channel", "sender", "time", "text"))
        rows.writerows(("help", m.by, stamp(m, "%Y-%m-%dT%H:%M:%S"), m.text) for m in lines(said))
    return folder / "chat.csv"


def sessions(said):
    return [[m for m in said if m.session == n] for n in range(said[-1].session + 1)]


def openai(said, folder):
    rows = [
        {
            "user": talk[0].person,
            "messages": [
                {"role": "user" if m.by == m.person else "assistant", "content": m.text}
                for m in talk
            ],
        }
        for talk in sessions(said)
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "chat.jsonl"


def sharegpt(said, folder):
    for person in PEOPLE:
        rows = [
            {
                "id": f"talk-{talk[0].session}",
                "conversations": [
                    {"from": "human" if m.by == person else "gpt", "value": m.text} for m in talk
                ],
            }
            for talk in sessions(said)
            if talk[0].person == person
        ]
        (folder / f"{person}.json").write_text(json.dumps(rows))
    return folder


def slack(said, folder):
    ids = {name: f"U{n:03}" for n, name in enumerate((*PEOPLE, "assistant"))}
    users = [
        {"id": i, "name": n, "is_bot": n == "assistant", "profile": {}} for n, i in ids.items()
    ]
    (folder / "users.json").write_text(json.dumps(users))
    (folder / "help").mkdir()
    for talk in sessions(said):
        day = [
            {"type": "message", "user": ids[m.by], "ts": f"{m.time}.{k:06}", "text": m.text}
            for k, m in enumerate(lines(talk))
        ]
        joined = {"type": "message", "subtype": "channel_join", "user": "U001", "text": "joined"}
        day.insert(0, joined | {"ts": f"{talk[0].time - 60}.000100"})
        (folder / "help" / f"{stamp(talk[0], '%Y-%m-%d')}.json").write_text(json.dumps(day))
    return folder


def discord(said, folder):
    messages = [
        {
            "id": str(10**18 + n),
            "type": "Default",
            "timestamp": stamp(m, "%Y-%m-%dT%H:%M:%S.123+00:00"),
            "content": m.text,
            "author": {
                "id": "7",
                "name": m.by,
                "discriminator": "0000",
                "isBot": m.by == "assistant",
            },
        }
        for n, m in enumerate(lines(said))
    ]
    chat = {
        "guild": {"name": "shop"},
        "channel": {"id": "42", "name": "help"},
        "messages": messages,
    }
    (folder / "chat.json").write_text(json.dumps(chat))
    return folder / "chat.json"


def whatsapp(said, folder):
    begin = "11/14/23, 9:00\u202fPM - Messages and calls are end-to-end encrypted.\n"
    text = "".join(
        f"{stamp(m, '%m/%d/%y, %I:%M')}\u202f{stamp(m, '%p')} - {m.by}: {m.text}\n" for m in said
    )
    (folder / "WhatsApp Chat with help.txt").write_text(begin + text)
    return folder / "WhatsApp Chat with help.txt"


def telegram(said, folder):
    messages = [
        {
            "id": n,
            "type": "message",
            "date": stamp(m, "%Y-%m-%dT%H:%M:%S"),
            "date_unixtime": str(m.time),
            "from": m.by,
            "from_id": f"user{m.by}",
            "text": [m.text[:4], {"type": "bold", "text": m.text[4:8]}, m.text[8:]],
        }
        for n, m in enumerate(lines(said))
    ]
    chat = {"name": "help", "type": "private_group", "id": 99, "messages": messages}
    (folder / "result.json").write_text(json.dumps(chat))
    return folder / "result.json"


def mbox(said, folder):
    mails = []
    for talk in sessions(said):
        for before, m in zip([None, *talk], talk):
            again = "Re: " if before else ""
            body = m.text
            if before:
                quoted = "".join(f"> {line}\n" for line in before.text.split("\n"))
                when = stamp(before, "%a, %b %d, %Y at %H:%M")
                body += f"\n\nOn {when}, {before.by} <{before.by}@shop.example> wrote:\n{quoted}"
            answers = f"In-Reply-To: <{before.number}@shop.example>\n" if before else ""
            mails.append(
                f"From {m.by}@shop.example {stamp(m, '%a %b %d %H:%M:%S %Y')}\n"
                f"From: {m.by} <{m.by}@shop.example>\nTo: help@shop.example\n"
                f"Date: {stamp(m, '%a, %d %b %Y %H:%M:%S +0000')}\n"
                f"Subject: {again}Question number {m.session} of mine\n"
                f"Message-ID: <{m.number}@shop.example>\n{answers}\n{body}\n\n"
            )
    (folder / "chat.mbox").write_text("".join(mails))
    return folder / "chat.mbox"


# Form as the plan names it → who writes it
FORMS = {
    "a table": flat_csv,
    "OpenAI messages": openai,
    "ShareGPT": sharegpt,
    "Slack's folder": slack,
    "Discord's JSON": discord,
    "WhatsApp's text": whatsapp,
    "Telegram's JSON": telegram,
    "mbox": mbox,
}


def write(form: str, folder: Path) -> Path:
    "Write the chats in a form; give what a command is given"
    folder.mkdir()
    return FORMS[form](chats(), folder)
