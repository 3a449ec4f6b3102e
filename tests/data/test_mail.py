"Mail: what a file holds, what of it is a reply, and texts made to break the reader."

import csv
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import mail, original

from humanlm.data.files import Faults, RowFault
from humanlm.data.mail import (
    MAX_DEPTH,
    _body_parts,
    mail_rows,
    read_mail,
)
from humanlm.data.rows import rows_source
from humanlm.hierarchy.prompts import name_speakers


def rows_of(*files):
    "The rows of some files, and the kinds of what was left out"
    items = [
        item
        for i, text in enumerate(files)
        for item in mail_rows({"file": f"rook-i/sent/{i}", "message": text})
    ]
    return [i for i in items if isinstance(i, dict)], [
        i.kind for i in items if isinstance(i, RowFault)
    ]


# ---- quotations


def test_outlook_quotations():
    question, answer = read_mail(mail("I have them all." + original("Who has the numbers?")))
    assert (question.sender, question.body, question.subject) == (
        "kim.poe@enron.com",
        "Who has the numbers?",
        "Gas prices in May",
    )
    assert (answer.sender, answer.body) == ("ira.rook@enron.com", "I have them all.")
    assert answer.time - question.time == 94 * 60


@pytest.mark.parametrize(
    "head",
    [
        "Kim Poe\n05/14/2001 03:05 PM\nTo: Ira Rook/HOU/ECT@ECT\ncc: \nSubject: Gas\n",
        "From: Kim Poe @ ENRON                           05/14/2001 03:05 PM\nTo: Ira "
        "Rook/HOU/ECT@ECT\ncc: \nSubject: Gas\n",
        '"Kim Poe" <kim.poe@enron.com> on 05/14/2001 03:05:00 PM\nTo: '
        "ira.rook@enron.com\ncc: \nSubject: Gas\n",
        "From: Kim Poe\nSent: Monday, May 14, 2001 3:05 PM\nTo: Ira Rook\nSubject: Gas\n",
        "*From:* Kim Poe\n*Date:* Monday, May 14, 2001 3:05 PM\n*To:* Ira Rook\n*Subject:* Gas\n",
        "-----Original Message-----\nFrom: Kim Poe [mailto:kim.poe@enron.com]\nSent: "
        "Monday, May 14, 2001 3:05 PM\nTo: 'Ira Rook'\nCc: A; B;\n C; D\nSubject: Gas\n",
    ],
)
def test_heads_of_many_mail_programs(head):
    first, last = read_mail(mail(f"I have them all.\n\n{head}\nWho has the numbers?"))
    assert (first.sender, first.body, last.body) == (
        "kim.poe@enron.com",
        "Who has the numbers?",
        "I have them all.",
    )
    assert last.time - first.time == 94 * 60


def test_quoted_lines_belong_to_whoever_is_named_above_them():
    text = (
        "On Mon, May 14, 2001 at 3:05 PM, Kim Poe wrote:\n> Who has them?\n>\n> > Ira "
        "wrote:\n> > > Nobody.\nI do.\n> And when?\nToday, I hope."
    )
    mails = read_mail(mail(text))
    assert [m.body for m in mails][-2:] == ["Who has them?\n\nAnd when?", "I do.\nToday, I hope."]
    assert [m.sender for m in mails][-2:] == ["kim.poe@enron.com", "ira.rook@enron.com"]


WHO = "Kim Poe <kim.poe@enron.com>"
OUTLOOK = "Von: Kim Poe\nGesendet: Montag, 14. Mai 2001 15:05\nAn: Ira Rook\nBetreff: Gas\n\n"


@pytest.mark.parametrize(
    "quotation",
    [
        "On Mon, May 14, 2001 at 3:05 PM Kim Poe <\nkim.poe@enron.com> wrote:\n\n> Who has them?",
        f"On Monday, 14 May 2001 at 15:05, {WHO}\nwrote:\n\nWho has them?",
        f"> On May 14, 2001, at 3:05 PM, {WHO} wrote:\n> \n> Who has them?",
        "Am 14.05.2001 um 15:05 schrieb Kim Poe:\n> Who has them?",
        f"Le lun. 14 mai 2001 à 15:05, {WHO} a\nécrit :\n\n> Who has them?",
        f"El lun, 14 may 2001 a las 15:05, {WHO}\nescribió:\n\n> Who has them?",
        "Il giorno lun 14 mag 2001 alle ore 15:05 Kim Poe ha scritto:\n\n> Who has them?",
        f"2001年5月14日(月) 15:05 {WHO}:\n\n> Who has them?",
        "-----Original Message-----\nFrom: Kim Poe\nSent: Monday, May 14, 2001 3:05 PM\n"
        "To: Ira Rook\nSubject: Gas\n\n> Who has them?",
        f"-----Ursprüngliche Nachricht-----\n{OUTLOOK}Who has them?".replace("\n", "\n> "),
        f"________________________________\n{OUTLOOK}Who has them?",
        f"Begin forwarded message:\n\nFrom: {WHO}\nSubject: Gas\nDate: May 14, 2001 at 3:05:00 PM "
        "PDT\nTo: Ira Rook <ira.rook@enron.com>\n\nWho has them?",
        '>>> "Kim Poe" <kim.poe@enron.com> 05/14/01 03:05PM >>>\nWho has them?\n\n-- \nKim Poe',
    ],
)
def test_own_text_is_told_from_quotations_in_many_languages(quotation):
    first, last = read_mail(mail(f"I have them all.\n\nSent from my phone\n\n{quotation}"))
    assert (first.sender, first.body) == ("kim.poe@enron.com", "Who has them?")
    assert last.body == "I have them all."


@pytest.mark.parametrize(
    "text",
    [
        "From: here on it is easy.\nTo: do that, you need time.\nSubject: to change.\n\nIra",
        "On Monday we met at 10:30.\nOn the other hand, nobody wrote:\nthat is all.",
        "On May 14, 2001, the Times wrote:\nGas is up again.",
        "The plan:\n----- Agenda -----\nFirst we eat.\n\n---------------\n\nThen we go.",
        "Von: hier\nBis: dort\nDatum: 14.05.2001\nAn: dem See",
    ],
)
def test_own_text_that_looks_like_a_head_stays(text):
    assert [m.body for m in read_mail(mail(text))] == [text]


def parts(kind, *some):
    "A body of several parts"
    between = f"B{len(some[0])}"
    return f'Content-Type: multipart/{kind}; boundary="{between}"\n\n' + "".join(
        [f"--{between}\n{part}\n" for part in some] + [f"--{between}--\n"]
    )


PLAIN, PAGE = "Content-Type: text/plain\n\na\n", "Content-Type: text/html\n\n<p>a</p><p>b</p>\n"
FILE = 'Content-Type: text/plain; name="log.txt"\n\nthe attachment\n'


@pytest.mark.parametrize(
    "body, text",
    [
        (PAGE, "a\nb"),
        (
            "Content-Type: text/html\n\n<div>a</div><div><br></div><ul><li>b<li>c &lt; d",
            "a\n\nb\nc < d",
        ),
        (
            "Content-Type: text/html\n\n<style><!-- p {} --></style><!-- <p>x --><p>a\nb<p>c",
            "a b\nc",
        ),
        ("Content-Type: text/html\n\n" + f'<img src="data:{"A" * 5000}">a', "a"),
        (parts("mixed", PAGE, FILE), "a\nb"),
        (parts("mixed", PLAIN, "Content-Type: image/png\n\nx\n", PLAIN), "a\n\na"),
        (parts("mixed", PLAIN, f"Content-Type: message/rfc822\n\n{mail('another')}"), "a"),
        (parts("mixed", parts("alternative", PAGE, PLAIN), FILE), "a"),
        (
            parts("alternative", "Content-Type: text/plain\n\n \n", parts("related", PAGE, FILE)),
            "a\nb",
        ),
        (
            'Content-Type: text/plain; charset="iso-8859-1"\nContent-Transfer-Encoding: '
            "quoted-printable\n\nd=E9j=E0 it=92s",
            "déjà it’s",
        ),
    ],
)
def test_the_body_is_what_a_reader_saw(body, text):
    assert read_mail(f"From: Ira <ira@a.org>\nDate: x\n{body}")[-1].body == text


@pytest.mark.parametrize(
    "sender",
    [
        "=?utf-8?Q?J=C3=BCrgen_Berg?= <j@a.org>",
        "=?iso-8859-1?Q?J=FCrgen?=\n =?iso-8859-1?Q?_Berg?= <j@a.org>",
        '"=?utf-8?B?SsO8cmdlbiBCZXJn?=" <j@a.org>',
        "=?utf-8?Q?Berg=2C_J=C3=BCrgen?= <j@a.org>",
    ],
)
def test_encoded_headers_are_decoded(sender):
    last = read_mail(f"From: {sender}\nSubject: =?utf-8?B?R3LDvMOfZQ==?=\n\nhi")[-1]
    assert (last.sender, last.sender_name, last.subject) == ("j@a.org", "jürgen berg", "Grüße")


def test_a_page_quotes_in_a_blockquote():
    page = (
        "<div>I have them all.</div><div>On Mon, May 14, 2001 at 3:05 PM Kim Poe &lt;"
        "<a>kim.poe@enron.com</a>&gt; wrote:<br></div><blockquote>Who has them?</blockquote>"
    )
    found = read_mail(f"From: ira@a.org\nContent-Type: text/html\n\n{page}")
    assert [(m.sender, m.body) for m in found] == [
        ("kim.poe@enron.com", "Who has them?"),
        ("ira@a.org", "I have them all."),
    ]


def test_chains_come_in_order_and_end_at_ten():
    chain = "".join(
        original(f"This is mail number {i}.", sender="Poe, Kim" if i % 2 else "Rook, Ira")
        for i in range(14)
    )
    mails = read_mail(mail("The newest of them all." + chain))
    assert len(mails) == MAX_DEPTH + 2 and mails[-2].body == "This is mail number 0."


# ---- people and dates


# ---- replies (2.3)


def test_every_mail_after_the_first_is_a_reply():
    rows, found = rows_of(
        mail(
            "That will be enough."
            + original("Here they are, all of them.", "Rook, Ira")
            + original("Who has the numbers?")
        )
    )
    assert [r["completion"] for r in rows] == [
        "Here they are, all of them.",
        "That will be enough.",
    ] and found == []
    assert [len(r["prompt"]) for r in rows] == [1, 2] and len({r["post_id"] for r in rows}) == 1
    assert rows[0]["post_id"].startswith("enron_") and len(rows[0]["post_id"]) == 22
    assert (
        rows[1]["metadata"]["x_origin"] == "ROOK-I"
        and rows[1]["metadata"]["subject"] == "RE: Gas prices in May"
    )


def test_a_mailbox_becomes_rows_with_the_user_as_human(tmp_path):
    file = tmp_path / "emails.csv"
    chain = (
        original("Can you bring them along?")
        + original("I have them all.", "Rook, Ira")
        + original("Who has the numbers?")
    )
    records = [
        ("rook-i/sent/1", mail("Yes, I will bring them." + chain)),
        ("rook-i/sent/2", "broken"),
        ("rook-i/sent/3", mail("OK." + original("Thanks a lot for that"), number=3)),
    ]
    with open(file, "w", newline="", encoding="cp1252") as f:
        csv.writer(f).writerows([("file", "message"), *records])
    faults = Faults()
    rows = list(rows_source("email", file, faults))
    assert [m["name"] for m in name_speakers(rows[-1].messages, rows[-1].user_id)] == [
        "kim.poe@enron.com",
        "HUMAN",
        "kim.poe@enron.com",
    ]
    assert len(rows) == 3 and len({r.context_id for r in rows}) == 1
    assert faults.counts == {"unreadable mail": 1, "short mail": 1} and "rook-i/sent/2" in next(
        iter(faults.examples["unreadable mail"])
    )


# ---- hostile input

PIECES = [
    "From: a",
    "To: b",
    "Sent: Monday, May 14, 2001 3:05 PM",
    "Subject: c",
    "",
    "> x",
    ">> y",
    "-----Original Message-----",
    "text",
    "Kim wrote:",
    "--- Forwarded by K on 05/14/2001 03:05",
    "PM -----",
    "05/14/2001 03:05 PM",
    "\t",
    "On a, b wrote:",
    ">>>>>>>>>>>>>> z",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=30))
@settings(max_examples=50, deadline=None)
def test_no_body_crashes_and_no_word_is_made_up(lines):
    text = "\n".join(lines)
    parts = _body_parts(text)
    assert 1 <= len(parts) <= MAX_DEPTH + 2
    assert {w for p in parts for w in p.text.split()} <= {
        w for line in lines for w in (line + " " + line.lstrip("> ")).split()
    } | {w.lstrip(">") for line in lines for w in line.split()} | {
        w
        for line in lines
        for i in range(len(line))
        if line[:i].strip("> ") == ""
        for w in line[i:].split()
    }


@pytest.mark.parametrize(
    "piece",
    [
        "From: a\n",
        "> x\n",
        "-----Original Message-----\n",
        "a wrote:\n> b\n",
        "a@",
        "On a, ",
        "From: a\nSent: b\n",
        "On 1 2001 1:00 @\n",
        ">>> a 1/1/01 ",
    ],
)
def test_time_is_linear(piece):
    def took(n):
        text = mail(piece * (n // len(piece)))
        start = time.process_time()
        read_mail(text)
        return time.process_time() - start

    assert min(took(400_000) for _ in range(2)) < 50 * max(
        4e-3, min(took(40_000) for _ in range(2))
    )  # squared, it would be 100
