"A build holds no names, calls each person by one pseudonym, and keeps its secret elsewhere."

import json
import re

import pyarrow.parquet as pq
import pytest
import raw_rows

from humanlm.core.basics import write_jsonl
from humanlm.core.grammar import parse
from humanlm.core.records import load_examples
from humanlm.data.build import GROUPS, build
from humanlm.data.pseudonyms import hide_people, pseudonym
from humanlm.data.rows import Entry

# source → what names people in its invented rows (a shop is nobody, nor is a model)
NAMES = {
    "reddit": ["tea_and_scru", "maple_grove_77", "ann_07"],
    "amazon": ["AE2XQ5"],
    "youtube": ["UCkim", "kim-p", "@ira", "UCira", "City News"],
    "medium": ["9f3c1a2b4d", "7aa01b2c3d4e", "5bb01b2c3d4e"],
    "wildchat": ["3f" * 20],
    "enron": ["ira", "kim.poe", "@enron.com"],
}


def settings(tmp, rows, name="out", **flags):
    path = tmp / "rows.jsonl"
    if not path.exists():
        write_jsonl(path, rows)
    given = {
        "build.path": str(path),
        "build.out": str(tmp / name),
        "build.test_frac": 0.2,
        "build.val_frac": 0.1,
    } | {k.replace("__", "."): v for k, v in flags.items()}
    return parse(
        GROUPS, [f"--{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items()]
    )


def published(folder):
    "Everything in a folder but the settings as text"
    texts = {}
    for p in sorted(folder.rglob("*")):
        if p.suffix == ".parquet":
            texts[str(p)] = json.dumps(pq.read_table(p).to_pylist(), ensure_ascii=False)
        elif p.is_file() and p.name != "config.yaml":
            texts[str(p)] = p.read_text()
    return texts


@pytest.mark.parametrize("source", NAMES)
def test_no_file_of_a_build_holds_a_name(tmp_path, source):
    rows = raw_rows.town(source)
    rows += [rows[0] | {"user_id": "[deleted]"}, rows[1] | {"prompt": []}]
    raw, s = (
        json.dumps(rows).lower(),
        settings(tmp_path, rows, build__source=source, build__sets=["rl", "sft"]),
    )
    built, plain = (
        build(s),
        build(settings(tmp_path, None, "plain", build__source=source, persona__pseudonyms=False)),
    )
    names = [name.lower() for name in NAMES[source] if name.lower() in raw]
    assert names and any(
        name in text.lower() for name in names for text in published(plain.folder).values()
    )
    for path, text in published(built.folder).items():
        assert [name for name in names if name in text.lower()] == [], path
    assert sum(built.rows.values()) == sum(plain.rows.values())


def log():
    people, rows = ["Anna Meyer", "bob", "kim_07", "Hope"], []
    for i in range(160):
        who, other = people[i % 4], people[(i + 1 + i // 4 % 3) % 4]
        text = (
            f"@{other} I think {raw_rows._WORDS[i % 18]} is better, ask Anna Meyer or "
            f"kim_07 about {i}"
        )
        rows.append(
            {
                "room": f"r{i // 8}",
                "nr": i,
                "who": who,
                "say": text,
                "re": i - 1 if i % 8 else None,
                "at": 1_600_000_000 + 60 * i,
            }
        )
    return rows


def test_people_of_a_log_have_one_pseudonym_in_ids_texts_and_personas(tmp_path):
    columns = {
        "thread": "room",
        "id": "nr",
        "user": "who",
        "text": "say",
        "parents": "re",
        "time": "at",
    }
    built = build(
        settings(
            tmp_path, log(), build__source="threads", build__columns=columns, build__min_comments=1
        )
    )
    salt = (tmp_path / "out.salt").read_bytes()
    examples = load_examples(built.folder)
    assert {e.user_id for e in examples} <= {
        pseudonym(n, salt) for n in ("Anna Meyer", "bob", "kim_07", "Hope")
    }
    for path, text in published(built.folder).items():
        assert not re.search(r"anna|meyer|kim_07|\bbob\b|@hope", text, re.I), path
        assert salt.decode() not in text, path
    assert not list(built.folder.rglob("*salt*"))


@pytest.mark.parametrize(
    "name, said",
    [
        ("Dr. John Smith", "thanks, dr. john smith!"),
        ("The Real Slim Shady", "so The real Slim Shady said"),
        ("Anna Groß", "ask ANNA GROSS, or anna groß."),
        ("kim-p", "kim-p's"),
        ("O'Hara 7", "*o'hara 7*"),
        ("İnci 5", "(İNCI 5)"),
        ("ivan_7", "ivan_7-like, /u/Ivan_7"),
    ],
)
def test_names_are_found_whatever_their_marks_and_case(name, said):
    for who in (name, "somebody_1"):
        entry = Entry("t/1", "log", who, "t/0", "t/0", said, ())
        reply = hide_people(entry, frozenset((name, "somebody_1")), salt=b"salt").reply
        assert not re.search(r"smith|shady|gro(ß|ss)|kim|hara|nci 5|ivan", reply, re.I)
        assert pseudonym(name, b"salt") in reply


def test_profile_addresses_name_nobody_in_texts_and_ids_of_a_log():
    said = (
        "https://www.reddit.com/u/janedoe and https://x.com/@janedoe, "
        "http://medium.com/@Jane.Doe/a-story"
    )
    root = "https://medium.com/@janedoe/1/1"
    context = ((root, "user", "janedoe", "hi", None),)
    entry = Entry("https://medium.com/@janedoe/1/2", "log", "bob", root, root, said, context)
    hidden = hide_people(entry, frozenset(("janedoe", "bob")), salt=b"salt")
    assert not re.search("jane|doe", str(hidden), re.I)
    assert hidden.context[0][0] == hidden.context_id
    assert hidden.reply.count(pseudonym("janedoe", b"salt")) == 2


def test_reports_say_where_a_fault_was_and_not_whose(tmp_path):
    rows = [
        *raw_rows.town("reddit"),
        raw_rows.reddit() | {"completion": "", "user_id": "rare_name_9"},
    ]
    built = build(settings(tmp_path, rows, build__source="reddit"))
    record = json.loads((built.folder / "run.json").read_text())
    assert record["faults"]["examples"]["empty reply"] == {"rows.jsonl, row 81": ""}
    assert "| rows.jsonl, row 81 |" in built.card
    assert not any("rare_name_9" in text for text in published(built.folder).values())
