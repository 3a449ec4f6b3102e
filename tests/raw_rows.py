"Invented rows in the shapes of the six published sources; no text or id belongs to anybody."

import json

WHEN = 1_700_000_000


def row(prompt, completion, post_id, user_id, metadata=None, timestamp=WHEN) -> dict:
    return {
        "prompt": prompt,
        "completion": completion,
        "post_id": post_id,
        "user_id": user_id,
        "timestamp": timestamp,
        "metadata": metadata or {},
    }


def said(role, content, **metadata) -> dict:
    return {"role": role, "content": content, "metadata": metadata}


def reddit(user="tea_and_scrubs", others=("maple_grove_77", "ann_07")) -> dict:
    "A post, a comment by somebody, a comment by the user, an answer to it"
    prompt = [
        said(others[0], "AITA for asking my flatmate to label the milk?", author=others[0]),
        said(others[1], "Which milk?", author=others[1]),
        said(user, "Did you two agree on rules?", author=user),
        said(others[0], "No, we never discussed it.", author=others[0]),
    ]
    return row(
        prompt, "Not rude at all. Shared kitchens need boring rules.", "zz91ab", user, {"score": 3}
    )


def video(
    title="Storm hits the coast", channel="City News", channel_id="UCnews0000000000000000001"
) -> dict:
    facts = {
        "kind": "youtube#video",
        "id": "vid01",
        "snippet": {"title": title, "channelTitle": channel, "channelId": channel_id},
    }
    return {"role": title, "content": "Live from the harbour.", "metadata": json.dumps(facts)}


def comment(
    name="@kim-p", channel="UCkim00000000000000000001", text="It&#39;s loud", kind="youtube#comment"
) -> dict:
    snippet = {"authorDisplayName": name} | (
        {"authorChannelId": {"value": channel}} if channel else {}
    )
    return {
        "role": name,
        "content": text,
        "metadata": json.dumps({"kind": kind, "snippet": snippet}),
    }


def youtube(user="UCkim00000000000000000001", prompt=None, name="@kim-p") -> dict:
    "A video, a comment by the user, a comment by somebody, and the user again"
    prompt = prompt or [
        video(),
        comment(),
        comment("@ira", "UCira00000000000000000001", "Stay safe"),
    ]
    return row(
        prompt,
        "Thanks &amp; you too",
        "vid01",
        user,
        json.dumps({"snippet": {"authorDisplayName": name}}),
    )


def medium(user="9f3c1a2b4d5e", response="resp1") -> dict:
    "An article by somebody, a response by the user, a response by somebody"
    prompt = [
        said("7aa01b2c3d4e", "POLITICS\n\nWho pays for the bridge?", id="art1", title="Who pays"),
        said(user, "We all do."),
        said("5bb01b2c3d4e", "Some more than others."),
    ]
    facts = {
        "counts": {"claps": 12, "voters": 0},
        "user": {"bio": "Writes about rivers", "tier": 2},
    }
    return row(prompt, "Then let us vote on it.", response, user, json.dumps(facts))


def amazon(user="AE2XQ5SYNTHETIC") -> dict:
    "A book and a review"
    book = {
        "title": "The Quiet Ferry",
        "store": "I. Rook (Author)",
        "categories": ["Books", "Mystery"],
        "price": 9.5,
        "author": "{'name': 'I. Rook', 'about': ['Writes at night.']}",
        "description": ["A ferry never arrives."],
        "features": [],
        "details": "{'Pages': '212 pages'}",
        "subtitle": "A novel",
    }
    prompt = [
        {"role": "I. Rook (Author)", "content": "The Quiet Ferry", "metadata": json.dumps(book)}
    ]
    facts = {"rating": 4.0, "verified_purchase": True, "helpful_vote": 0}
    return row(
        prompt,
        "Slow but good\n\nI read it in one night.",
        "B000SYNTH",
        user,
        json.dumps(facts),
        WHEN * 1000,
    )


def wildchat(user="3f" * 32) -> dict:
    "A request, an answer by a model, and the next request"
    prompt = [
        said(user, "Write a note to my landlord."),
        said("gpt-3.5-turbo-0301", "Dear landlord, ...", model="gpt-3.5-turbo-0301"),
    ]
    return row(prompt, "shorter please", "c0ffee", user, {"language": "English"}, 0)


def enron(user="ira.rook@enron.com") -> dict:
    "A mail by somebody, an answer by the user, and an answer to it"
    prompt = [
        said(
            "kim.poe@enron.com",
            "Who has the numbers?",
            subject="Gas prices in May",
            **{"from": '"Poe, Kim" <kim.poe@enron.com>'},
        ),
        said("Ira.Rook@ENRON.com", "I have them.", subject="RE: Gas prices in May"),
        said("kim.poe@enron.com", "Send them over, please.", subject="RE: Gas prices in May"),
    ]
    return row(
        prompt,
        "They are in your mailbox.",
        "enron_0011223344556677",
        user,
        {"subject": "RE: Gas prices in May", "x_folder": "Sent"},
    )


ROWS = {
    "reddit": reddit,
    "youtube": youtube,
    "medium": medium,
    "amazon": amazon,
    "wildchat": wildchat,
    "enron": enron,
}

CALLED = {  # what the speakers of the rows above are called in a prompt
    "reddit": ["maple_grove_77", "ann_07", "HUMAN", "maple_grove_77"],
    "youtube": ["City News", "HUMAN", "@ira"],
    "medium": ["7aa01b2c3d4e", "HUMAN", "5bb01b2c3d4e"],
    "amazon": ["Amazon store: I. Rook (Author)"],
    "wildchat": ["HUMAN", ""],
    "enron": ["kim.poe@enron.com", "HUMAN", "kim.poe@enron.com"],
}


def mail(
    text,
    sender="ira.rook@enron.com",
    date="Mon, 14 May 2001 16:39:00 -0700 (PDT)",
    subject="RE: Gas prices in May",
    to="kim.poe@enron.com",
    number=1,
) -> str:
    "A file of a mailbox"
    return (
        f"Message-ID: <{number}.JavaMail.synthetic@thyme>\nDate: {date}\nFrom: "
        f"{sender}\nTo: {to}\nSubject: {subject}\n"
        f"X-Folder: \\Sent\nX-Origin: ROOK-I\n\n{text}\n"
    )


def original(
    text,
    sender="Poe, Kim",
    sent="Monday, May 14, 2001 3:05 PM",
    subject="Gas prices in May",
    to="Rook, Ira",
) -> str:
    "A quotation as Outlook writes it"
    return (
        f"\n -----Original Message-----\nFrom: \t{sender}  "
        f"\nSent:\t{sent}\nTo:\t{to}\nSubject:\t{subject}\n\n{text}\n"
    )


def forwarded(
    text, sender="Kim Poe@ENRON", date="05/14/2001 03:05 PM", subject="Gas prices in May"
) -> str:
    "A quotation as Lotus Notes writes it, with its line of dashes broken in two"
    return (
        f"---------------------- Forwarded by Ira Rook/HOU/ECT on {date[:16]} \nPM "
        "---------------------------\n\n\n"
        f"{sender}\n{date}\nTo: Ira Rook/HOU/ECT@ECT\ncc:  \nSubject: {subject}\n\n{text}\n"
    )


_WORDS = (
    "tea rain bike shed garden street lamp early late quiet loud never always maybe thanks "
    "fix paint wait"
).split()


def town(source):
    "Rows of four users of a source, each with earlier messages and with texts that name the user"
    start, rows = globals()[source].__defaults__[0], []
    for i in range(80):
        user = (
            start.replace("ira.", f"ira{'abcd'[i % 4]}7.")
            if source == "enron"
            else f"{start[:-2]}{'abcd'[i % 4]}7"
        )
        text = (
            json.dumps(globals()[source]())
            .replace(start, user)
            .replace("Ira.Rook@ENRON.com", user.title())
        )
        swaps = {
            "zz91ab": f"zz{i // 4}",
            "vid01": f"vid{i // 4}",
            "art1": f"art{i // 4}",
            "Gas prices": f"Gas prices {i // 4}",
        }
        for old, new in swaps.items():
            text = text.replace(old, new)
        call = f" What do you say, @{user}? Or u/{user.upper()}?"
        raw = json.loads(text.replace("A ferry never arrives.", "A ferry never arrives." + call))
        if source not in ("reddit", "youtube", "medium"):
            raw["post_id"] = f"{raw['post_id']}{i // 4}"
        raw["prompt"][0]["content"] += call
        words = " ".join(f"{word}{i}" for word in _WORDS)
        rows.append(
            raw
            | {
                "completion": f"{raw['completion']} {words}",
                "timestamp": raw["timestamp"] + 1000 * i,
            }
        )
    return rows
