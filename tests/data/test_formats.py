"Six sources, one row: identities, faults, files, and what real data look like."

import json
import os
from hashlib import md5, sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import raw_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import CALLED, ROWS, WHEN, comment, said, video

from humanlm.core.basics import write_jsonl
from humanlm.core.records import Persona
from humanlm.data.files import Faults, RowFault
from humanlm.data.people import _read_persona
from humanlm.data.rows import _map_row, rows_source
from humanlm.hierarchy.prompts import name_speakers

DATA = Path(os.environ.get("HUMANLM_DATA") or "/nowhere")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="set HUMANLM_DATA to a folder with real data"
)
each_source = pytest.mark.parametrize("source", ROWS)


def names(row):
    return [m["name"] for m in name_speakers(row.messages, row.user_id)]


def mapped(source, raws, faults):
    "Entries; what is wrong is counted"
    with TemporaryDirectory() as folder:
        path = write_jsonl(Path(folder) / "rows.jsonl", raws)
        return list(rows_source(source, path, faults))


def released(raw: dict, user: str) -> dict:
    "A row as it was released: hashed user id, metadata as strings, a persona"
    prompt = [
        m
        | {
            "metadata": m["metadata"]
            if isinstance(m["metadata"], str)
            else json.dumps(m["metadata"])
        }
        for m in raw["prompt"]
    ]
    return raw | {
        "prompt": prompt,
        "user_id": user,
        "metadata": "{}",
        "turn_id": len(prompt),
        "persona": json.dumps({"demographics": {}, "interests": ["tea"]}),
    }


# ---- whose message is it (humanlm.md 8.7.8, V5)


@each_source
def test_own_messages_are_human_and_nobody_elses(source):
    assert names(_map_row(source, ROWS[source]())) == CALLED[source]


@each_source
def test_a_stranger_is_never_human(source):
    raw = ROWS[source]()
    if source == "wildchat":
        pytest.skip("a chat has one user by construction")
    stranger = {"enron": "lee.ferro@enron.com", "youtube": "UClee0000000000000000001"}.get(
        source, "lee_ferro_9"
    )
    assert "HUMAN" not in names(_map_row(source, raw | {"user_id": stranger, "metadata": {}}))


SPELLED = {  # spellings of the user, and of others
    "reddit": (
        ["tea_1", "Tea_1", "u/tea_1", "/u/TEA_1", " tea_1 "],
        ["tea_", "tea_11", "HUMAN", "human", "[deleted]", "NA", "utea_1", "tea_1/"],
    ),
    "medium": (
        ["9f3c1a2b4d5e", "@9f3c1a2b4d5e"],
        ["9f3c1a2b4d5", "9F3C1A2B4D5E", "HUMAN", "", "x@9f3c1a2b4d5e"],
    ),
    "enron": (
        [
            "kim.poe@enron.com",
            "Kim.Poe@ENRON.com",
            '"Poe, Kim" <kim.poe@enron.com>',
            "'kim.poe@enron.com'",
        ],
        [
            "kim.poe@example.org",
            "im.poe@enron.com",
            "HUMAN",
            "lee.ferro@enron.com",
            '"kim.poe" <lee@enron.com>',
        ],
    ),
}


@given(st.sampled_from(sorted(SPELLED)), st.data())
@settings(max_examples=50, deadline=None)
def test_every_spelling_of_the_user_is_human_and_no_other(source, data):
    own, others = SPELLED[source]
    authors = data.draw(st.lists(st.sampled_from(own + others), min_size=1, max_size=6))
    facts = (lambda name: {"author": name}) if source == "reddit" else (lambda name: {})
    raw = raw_rows.row(
        [said(a, "Hello there.", **facts(a)) for a in authors],
        "Hello again.",
        "p1",
        data.draw(st.sampled_from(own)),
    )
    assert [name == "HUMAN" for name in names(_map_row(source, raw))] == [a in own for a in authors]


def test_channel_ids_decide_where_both_sides_have_one():
    same_name = [video(), comment("@kim-p", "UCother0000000000000000001")]
    assert names(_map_row("youtube", raw_rows.youtube(prompt=same_name))) == ["City News", "@kim-p"]
    new_name = [video(), comment("Kim renamed", "UCkim00000000000000000001")]
    assert names(_map_row("youtube", raw_rows.youtube(prompt=new_name))) == ["City News", "HUMAN"]
    as_text = [video(), comment("x", "", "hi") | {"role": "UCkim00000000000000000001"}]
    assert names(_map_row("youtube", raw_rows.youtube(prompt=as_text))) == ["City News", "HUMAN"]


def test_ids_that_cannot_be_compared_are_nobody():
    raw = raw_rows.youtube(prompt=[video(), comment("@kim-p", "")]) | {"metadata": {}}
    assert names(_map_row("youtube", raw)) == ["City News", "@kim-p"]


@pytest.mark.parametrize(
    "source, own",
    [
        ("reddit", "tea_and_scrubs"),
        ("youtube", "UCkim00000000000000000001"),
        ("medium", "9f3c1a2b4d5e"),
        ("enron", "ira.rook@enron.com"),
    ],
)
@pytest.mark.parametrize("digest", [sha256, md5])
def test_a_released_hash_is_matched_where_it_can_be(source, own, digest):
    raw = released(ROWS[source](), digest(own.encode()).hexdigest()[:16])
    assert names(_map_row(source, raw)) == CALLED[source]


@pytest.mark.parametrize("source", ["reddit", "youtube", "medium", "enron"])
def test_a_hash_of_nobody_here_is_unknown_and_never_guessed(source):
    (row,) = mapped(source, [released(ROWS[source](), "0123456789abcdef")], Faults())
    assert "HUMAN" not in names(row)
    assert json.loads(row.persona) == {"demographics": {}, "interests": ["tea"]}


# ---- deleted accounts (B10)


@pytest.mark.parametrize("gone", ["[deleted]", "[removed]", "NA", "", None, float("nan"), " NA "])
def test_deleted_authors_are_nobody(gone):
    raw = raw_rows.reddit()
    for i in (1, 3):
        raw["prompt"][i] |= {"role": gone, "metadata": {"author": gone}}
    row = _map_row("reddit", raw)
    assert names(row) == ["maple_grove_77", "", "HUMAN", ""]
    faults = Faults()
    assert mapped("reddit", [raw | {"user_id": gone}], faults) == [] and faults.counts == {
        "unknown author": 1
    }


# ---- contents (2.10)


def test_what_a_prompt_shows():
    shown = {source: _map_row(source, make()).messages[0].content for source, make in ROWS.items()}
    assert shown["youtube"] == "Storm hits the coast\n\nLive from the harbour."
    assert shown["medium"] == "Who pays for the bridge?"
    assert shown["amazon"].split("\n")[:4] == [
        "Books > Mystery",
        "Title: The Quiet Ferry",
        "Subtitle: A novel",
        "Price: 9.5",
    ]
    assert (
        "Author: name: I. Rook; about: Writes at night." in shown["amazon"]
        and "Details: Pages: 212 pages" in shown["amazon"]
    )
    row = _map_row("youtube", raw_rows.youtube())
    assert row.messages[1].content == "It's loud" and row.reply == "Thanks & you too"
    assert [m.role for m in _map_row("wildchat", raw_rows.wildchat()).messages] == [
        "user",
        "assistant",
    ]


def test_facts_for_personas_are_found_where_they_are():
    def facts(source, raw):
        return _map_row(source, raw).facts

    assert facts("medium", raw_rows.medium()) == {
        "counts.claps": 12,
        "bio": "Writes about rivers",
        "tier": 2,
    }
    assert facts("amazon", raw_rows.amazon()) == {"rating": 4.0, "verified_purchase": True}
    assert facts("enron", raw_rows.enron()) == {
        "subject": "RE: Gas prices in May",
        "x_folder": "Sent",
    }
    for source, make in ROWS.items():
        assert facts(source, make() | {"metadata": None}) == {}


@pytest.mark.parametrize("text", ['"Live and let live" is her motto.', "{curly} prose", "{"])
def test_a_persona_that_is_no_object_is_prose(text):
    assert _map_row("reddit", raw_rows.reddit() | {"persona": text}).persona == text
    assert _read_persona(text, "u") == Persona("u", text)


# ---- roots and ids (V3, V6)


@each_source
def test_ids_come_from_content_and_ids_alone(source):
    raw = ROWS[source]()
    row = _map_row(source, raw)
    assert _map_row(source, dict(reversed(raw.items()))).id == row.id
    late = WHEN + 5
    assert (
        _map_row(source, raw | {"timestamp": late}).id
        == _map_row(source, raw | {"timestamp": late * 1000}).id
        != row.id
    )
    changed = [
        raw | {"completion": "Something else entirely."},
        raw | {"prompt": raw["prompt"] + [said("x_1", "more")]}
        if source != "youtube"
        else raw | {"prompt": raw["prompt"] + [comment("@lee", "UClee", "more")]},
    ]
    assert len({row.id, *(_map_row(source, c).id for c in changed)}) == 3


# ---- names and bad input


@pytest.mark.parametrize(
    "change, kind",
    [
        ({"user_id": None}, "unknown author"),
        ({"completion": ""}, "empty reply"),
        ({"completion": 3}, "wrong type"),
        ({"completion": "[deleted]"}, "removed reply"),
        ({"prompt": None}, "missing field"),
        ({"prompt": []}, "no context"),
        ({"prompt": "[{]"}, "broken JSON"),
        ({"prompt": [{"role": "a", "content": 4}]}, "wrong type"),
        ({"post_id": ""}, "missing field"),
    ],
)
def test_rows_that_cannot_be_used_are_counted_by_kind(change, kind):
    faults = Faults()
    assert mapped("reddit", [raw_rows.reddit() | change], faults) == []
    assert faults.counts == {kind: 1} and all(len(x) <= 160 for x in faults.examples[kind])
    assert kind in faults._repr_markdown_()
    with pytest.raises(RowFault) as e:
        _map_row("reddit", raw_rows.reddit() | change)
    assert e.value.kind == kind and len(str(e.value)) < 400


@pytest.mark.parametrize(
    "change, time",
    [
        ({"timestamp": None}, None),
        ({"timestamp": "yesterday"}, None),
        ({"timestamp": 126489600, "metadata": "{broken"}, 126489600.0),
    ],
)
def test_odd_rows_are_kept(change, time):
    assert _map_row("reddit", raw_rows.reddit() | change).time == time


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


KEYS = (
    "role",
    "content",
    "metadata",
    "kind",
    "snippet",
    "author",
    "authorChannelId",
    "authorDisplayName",
    "id",
    "store",
    "details",
    "categories",
    "description",
    "transcript",
    "subject",
    "from",
    "model",
    "value",
    "topLevelComment",
    "timestamp",
)
facts = st.dictionaries(
    st.sampled_from(KEYS),
    anything | st.dictionaries(st.sampled_from(KEYS), anything, max_size=4),
    max_size=6,
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": anything,
        "content": st.text(max_size=20) | anything,
        "metadata": facts | anything,
    },
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.lists(message, max_size=3) | anything,
        "completion": st.text(max_size=20) | anything,
        "post_id": anything,
        "persona": anything,
        "user_id": st.sampled_from(["0123456789abcdef", "UCx", "@x", "a b"]) | anything,
        "timestamp": anything,
        "metadata": facts | anything,
    },
)


@given(st.sampled_from(sorted(ROWS)), rows)
@settings(max_examples=50, deadline=None)
def test_no_row_crashes_a_mapper(source, raw):
    try:
        row = _map_row(source, raw)
    except RowFault as e:
        assert e.kind
    else:
        assert row.user_id and row.context_id and row.reply.strip()
        assert all(isinstance(m.name, str) and isinstance(m.content, str) for m in row.messages)


# ---- real data


@needs_data
def test_published_rows():
    faults = Faults()
    path = DATA / "humanlm_official_sample" / "chat_sample.jsonl"
    results = list(rows_source("wildchat", path, faults))
    assert [len(row.messages) for row in results] == [2, 4] and not faults.counts
    for row in results:
        assert [m.role for m in row.messages] == ["user", "assistant"] * (len(row.messages) // 2)
        assert all(m.name == row.user_id for m in row.messages if m.role == "user")
        assert row.reply and row.persona.startswith("A user")
    assert len({row.context_id for row in results}) == 1 and len({row.id for row in results}) == 2
