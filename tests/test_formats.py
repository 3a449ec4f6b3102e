"Six sources, one row: identities, faults, files, and what real data look like."
import copy, csv, gzip, json, os, random, time, tracemalloc
from hashlib import md5, sha256
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import raw_rows
from raw_rows import CALLED, ROWS, WHEN, comment, said, video
from humanlm.data import DataError
from humanlm.formats import (FAULTS, NOTES, Faults, RowFault, enrichment, formats, hub_items, map_row, map_rows, numbered_rows,
                             on_hub, read_official, read_raw, shown_prompt, source_name, utc_seconds)
from humanlm.hierarchy import name_speakers

DATA = Path(os.environ.get("HUMANLM_DATA") or "/nowhere")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="set HUMANLM_DATA to a folder with real data")
each_source = pytest.mark.parametrize("source", ROWS)


def names(row): return [m["name"] for m in name_speakers(shown_prompt(row), row.user_id)]


def released(raw: dict, user: str) -> dict:
    "A row as it was released: hashed user id, metadata as strings, a persona"
    prompt = [m | {"metadata": m["metadata"] if isinstance(m["metadata"], str) else json.dumps(m["metadata"])} for m in raw["prompt"]]
    return raw | {"prompt": prompt, "user_id": user, "metadata": "{}", "turn_id": len(prompt),
                  "persona": json.dumps({"demographics": {}, "interests": ["tea"]})}


# ---- whose message is it (humanlm.md 8.7.8, V5)

@each_source
def test_own_messages_are_human_and_nobody_elses(source):
    row = map_row(source, ROWS[source]())
    assert names(row) == CALLED[source]
    assert not {"identity unknown", "matched by display name", "matched by hash"} & set(row.notes)


@each_source
def test_a_stranger_is_never_human(source):
    raw = ROWS[source]()
    if source == "wildchat": pytest.skip("a chat has one user by construction")
    stranger = {"enron": "lee.ferro@enron.com", "youtube": "UClee0000000000000000001"}.get(source, "lee_ferro_9")
    assert "HUMAN" not in names(map_row(source, raw | {"user_id": stranger, "metadata": {}}))


@each_source
def test_prompts_may_be_lists_or_json_strings_and_facts_too(source):
    raw = ROWS[source]()
    as_text = raw | {"prompt": json.dumps(raw["prompt"])}
    decoded = raw | {"prompt": [m | {"metadata": json.loads(m["metadata"]) if isinstance(m["metadata"], str) else m["metadata"]}
                                for m in raw["prompt"]]}
    assert map_row(source, as_text) == map_row(source, raw) == map_row(source, decoded)


SPELLED = {  # spellings of the user, and of others
    "reddit": (["tea_1", "Tea_1", "u/tea_1", "/u/TEA_1", " tea_1 "], ["tea_", "tea_11", "HUMAN", "human", "[deleted]", "NA", "utea_1", "tea_1/"]),
    "medium": (["9f3c1a2b4d5e", "@9f3c1a2b4d5e"], ["9f3c1a2b4d5", "9F3C1A2B4D5E", "HUMAN", "", "x@9f3c1a2b4d5e"]),
    "enron": (["kim.poe@enron.com", "Kim.Poe@ENRON.com", '"Poe, Kim" <kim.poe@enron.com>', "'kim.poe@enron.com'"],
              ["kim.poe@example.org", "im.poe@enron.com", "HUMAN", "lee.ferro@enron.com", '"kim.poe" <lee@enron.com>'])}


@given(st.sampled_from(sorted(SPELLED)), st.data())
@settings(max_examples=150, deadline=None)
def test_every_spelling_of_the_user_is_human_and_no_other(source, data):
    own, others = SPELLED[source]
    authors = data.draw(st.lists(st.sampled_from(own + others), min_size=1, max_size=6))
    facts = (lambda name: {"author": name}) if source == "reddit" else (lambda name: {})
    raw = raw_rows.row([said(a, "Hello there.", **facts(a)) for a in authors], "Hello again.", "p1", data.draw(st.sampled_from(own)))
    assert [name == "HUMAN" for name in names(map_row(source, raw))] == [a in own for a in authors]


def test_spelling_of_a_login_does_not_matter():
    raw = raw_rows.reddit()
    raw["prompt"][2]["metadata"]["author"] = "u/Tea_And_Scrubs"
    assert names(map_row("reddit", raw)) == CALLED["reddit"]


def test_channel_ids_decide_where_both_sides_have_one():
    same_name = [video(), comment("@kim-p", "UCother0000000000000000001")]
    assert names(map_row("youtube", raw_rows.youtube(prompt=same_name))) == ["City News", "@kim-p"]
    new_name = [video(), comment("Kim renamed", "UCkim00000000000000000001")]
    assert names(map_row("youtube", raw_rows.youtube(prompt=new_name))) == ["City News", "HUMAN"]
    as_text = [video(), comment("x", "", "hi") | {"role": "UCkim00000000000000000001"}]
    assert names(map_row("youtube", raw_rows.youtube(prompt=as_text))) == ["City News", "HUMAN"]


def test_the_channel_itself_can_be_the_user():
    row = map_row("youtube", raw_rows.youtube(user="UCnews0000000000000000001", prompt=[video(), comment()], name="City News"))
    assert names(row) == ["HUMAN", "@kim-p"]


def test_display_names_are_compared_where_no_id_is_there_and_this_is_noted():
    row = map_row("youtube", raw_rows.youtube(prompt=[video(), comment("@Kim-P", "")]))
    assert names(row) == ["City News", "HUMAN"] and "matched by display name" in row.notes
    other = map_row("youtube", raw_rows.youtube(prompt=[video(), comment("@ira", "")]))
    assert names(other) == ["City News", "@ira"] and not other.notes


def test_ids_that_cannot_be_compared_are_said_to_be_unknown():
    raw = raw_rows.youtube(prompt=[video(), comment("@kim-p", "")]) | {"metadata": {}}
    row = map_row("youtube", raw)
    assert names(row) == ["City News", "@kim-p"] and "identity unknown" in row.notes


def test_thread_comments_are_comments():
    inner = {"kind": "youtube#commentThread", "snippet": {"topLevelComment": {"snippet": {
        "authorDisplayName": "@kim-p", "authorChannelId": {"value": "UCkim00000000000000000001"}}}}}
    row = map_row("youtube", raw_rows.youtube(prompt=[video(), {"role": "x", "content": "hi", "metadata": inner}]))
    assert names(row) == ["City News", "HUMAN"]


@pytest.mark.parametrize("source, own", [("reddit", "tea_and_scrubs"), ("youtube", "UCkim00000000000000000001"),
                                         ("medium", "9f3c1a2b4d5e"), ("enron", "ira.rook@enron.com")])
@pytest.mark.parametrize("digest", [sha256, md5])
def test_a_released_hash_is_matched_where_it_can_be(source, own, digest):
    row = map_row(source, released(ROWS[source](), digest(own.encode()).hexdigest()[:16]))
    assert names(row) == CALLED[source] and "matched by hash" in row.notes and "identity unknown" not in row.notes


@pytest.mark.parametrize("source", ["reddit", "youtube", "medium", "enron"])
def test_a_hash_of_nobody_here_is_unknown_and_never_guessed(source):
    faults = Faults()
    row, = map_rows(source, [released(ROWS[source](), "0123456789abcdef")], faults)
    assert "HUMAN" not in names(row) and faults.counts["identity unknown"] == 1
    assert "identity unknown" in faults._repr_markdown_()
    assert row.persona == {"demographics": {}, "interests": ["tea"]}


def test_released_books_and_chats_need_no_match():
    for source in ("amazon", "wildchat"):
        raw = ROWS[source]()
        assert names(map_row(source, released(raw, raw["user_id"]))) == CALLED[source]
        assert "identity unknown" not in map_row(source, released(raw, raw["user_id"])).notes


# ---- deleted accounts (B10)

@pytest.mark.parametrize("gone", ["[deleted]", "[removed]", "NA", "", None, float("nan"), " NA "])
def test_deleted_authors_are_nobody(gone):
    raw = raw_rows.reddit()
    for i in (1, 3): raw["prompt"][i] |= {"role": gone, "metadata": {"author": gone}}
    row = map_row("reddit", raw)
    assert names(row) == ["maple_grove_77", "", "HUMAN", ""] and "unknown author in the context" in row.notes
    faults = Faults()
    assert list(map_rows("reddit", [raw | {"user_id": gone}], faults)) == [] and faults.counts == {"unknown author": 1}


@pytest.mark.parametrize("mark", ["NA", "[deleted]"])
def test_the_hash_of_a_mark_is_nobody_either(mark):
    with pytest.raises(RowFault, match="unknown author"): map_row("reddit", raw_rows.reddit() | {"user_id": sha256(mark.encode()).hexdigest()[:16]})


def test_somebody_called_human_is_not_the_user():
    row = map_row("reddit", raw_rows.reddit(others=("HUMAN", "ann_07")))
    assert names(row) == ["@HUMAN", "ann_07", "HUMAN", "@HUMAN"]


def test_mentions_of_the_user_are_hidden():
    raw = raw_rows.reddit()
    raw["prompt"][3]["content"] = "u/tea_and_scrubs is right, and TEA_AND_SCRUBS knows"
    assert shown_prompt(map_row("reddit", raw))[3].content == "HUMAN is right, and HUMAN knows"


def test_a_matched_hash_gives_the_name_that_others_call_the_user_by():
    raw = released(raw_rows.reddit(), sha256(b"tea_and_scrubs").hexdigest()[:16])
    raw["prompt"][3]["content"] = "@tea_and_scrubs is right"
    assert shown_prompt(map_row("reddit", raw))[3].content == "HUMAN is right"


def test_the_users_side_of_a_chat_may_name_the_model_too():
    raw = raw_rows.wildchat()
    for m in raw["prompt"]: m["metadata"]["model"] = "gpt-4"
    assert names(map_row("wildchat", raw)) == ["HUMAN", ""]
    moved = raw_rows.wildchat() | {"user_id": "aa" * 32}
    row = map_row("wildchat", moved)
    assert names(row) == ["HUMAN", ""] and "several people in a chat" in row.notes


# ---- contents (2.10)

def test_what_a_prompt_shows():
    shown = {source: map_row(source, make()).prompt[0].content for source, make in ROWS.items()}
    assert shown["youtube"] == "Storm hits the coast\n\nLive from the harbour."
    assert shown["medium"] == "Who pays for the bridge?"
    assert shown["amazon"].split("\n")[:4] == ["Books > Mystery", "Title: The Quiet Ferry", "Subtitle: A novel", "Price: 9.5"]
    assert "Author: name: I. Rook; about: Writes at night." in shown["amazon"] and "Details: Pages: 212 pages" in shown["amazon"]
    row = map_row("youtube", raw_rows.youtube())
    assert row.prompt[1].content == "It's loud" and row.completion == "Thanks & you too"
    assert [m.role for m in map_row("wildchat", raw_rows.wildchat()).prompt] == ["user", "assistant"]


def test_transcripts_are_shown():
    facts = json.loads(video()["metadata"]) | {"transcript": [{"text": "it is"}, {"text": "windy"}]}
    raw = raw_rows.youtube(prompt=[video() | {"metadata": facts}])
    assert map_row("youtube", raw).prompt[0].content.endswith("Transcript: it is windy")


@pytest.mark.parametrize("literal", ["{'a': __import__('os').system('false')}", "{" * 5000, "[" * 5000, "{'a': 1", "{1: {2: 3}}", "[None, 'x']"])
def test_python_literals_run_nothing_and_break_nothing(literal):
    raw = raw_rows.amazon()
    facts = json.loads(raw["prompt"][0]["metadata"]) | {"details": literal}
    assert "Title: The Quiet Ferry" in map_row("amazon", raw | {"prompt": [raw["prompt"][0] | {"metadata": facts}]}).prompt[0].content


@pytest.mark.parametrize("name", ["categories", "description", "author", "details", "store", "title"])
@pytest.mark.parametrize("value", [5, True, [[["x"]]], {"a": {"b": None}}, json.loads("[" * 80 + "]" * 80), json.loads("[" * 900 + "1" + "]" * 900)])
def test_facts_about_products_may_have_any_shape(name, value):
    facts = json.loads(raw_rows.amazon()["prompt"][0]["metadata"]) | {name: value}
    assert map_row("amazon", raw_rows.amazon() | {"prompt": [said("shop", "text", **facts)]}).prompt[0].content


def test_facts_for_personas_are_found_where_they_are():
    assert enrichment(map_row("medium", raw_rows.medium())) == {"counts.claps": 12, "bio": "Writes about rivers", "tier": 2}
    assert enrichment(map_row("amazon", raw_rows.amazon())) == {"rating": 4.0, "verified_purchase": True}
    assert enrichment(map_row("enron", raw_rows.enron())) == {"subject": "RE: Gas prices in May", "x_folder": "Sent"}
    for source, make in ROWS.items(): enrichment(map_row(source, make() | {"metadata": None}))


# ---- roots and ids (V3, V6)

def test_responses_to_one_article_share_a_root():
    rows = [map_row("medium", raw_rows.medium(response=f"resp{i}")) for i in range(3)]
    assert len({r.post_id for r in rows}) == 3 and {r.context_id for r in rows} == {"art1"}


def test_an_article_without_an_id_is_known_by_its_text():
    def bare(response):
        raw = raw_rows.medium(response=response)
        raw["prompt"][0]["metadata"] = {}
        return map_row("medium", raw)
    rows = [bare("resp1"), bare("resp2")]
    assert len({r.context_id for r in rows}) == 1 and "root known by its text" in rows[0].notes


def test_mails_of_one_subject_share_a_root():
    one, two = raw_rows.enron(), raw_rows.enron()
    two["post_id"], two["prompt"][0]["metadata"]["subject"] = "enron_ff", "Fwd: RE: gas prices  in May"
    lunch = copy.deepcopy(one) | {"post_id": "enron_aa"}
    lunch["prompt"][0]["metadata"]["subject"] = "Re: Lunch"
    assert map_row("enron", one).context_id == map_row("enron", two).context_id
    assert map_row("enron", lunch).context_id == "enron_aa"


@each_source
def test_row_ids_come_from_content_and_ids_alone(source):
    raw = ROWS[source]()
    row = map_row(source, raw)
    assert map_row(source, dict(reversed(raw.items()))).row_id == row.row_id
    late = WHEN + 5
    assert map_row(source, raw | {"timestamp": late}).row_id == map_row(source, raw | {"timestamp": late * 1000}).row_id != row.row_id
    changed = [raw | {"completion": "Something else entirely."}, raw | {"prompt": raw["prompt"] + [said("x_1", "more")]} if source != "youtube"
               else raw | {"prompt": raw["prompt"] + [comment("@lee", "UClee", "more")]}]
    assert len({row.row_id, *(map_row(source, c).row_id for c in changed)}) == 3


def test_message_ids_are_the_same_in_every_row_that_shows_the_message():
    longer = raw_rows.reddit()
    shorter = longer | {"prompt": longer["prompt"][:2], "completion": "Oat milk."}
    a, b = map_row("reddit", longer), map_row("reddit", shorter)
    assert [m.id for m in a.prompt[:2]] == [m.id for m in b.prompt] and len({m.id for m in a.prompt}) == 4


def test_one_second_can_hold_several_rows():
    rows = [map_row("reddit", raw_rows.reddit() | {"completion": f"Answer {i}"}) for i in range(3)]
    assert len({(r.post_id, r.user_id, r.time) for r in rows}) == 1 and len({r.row_id for r in rows}) == 3


def test_two_users_with_one_word_are_two_rows():
    thanks = [raw_rows.reddit() | {"user_id": u, "completion": "Thanks!"} for u in ("a_1", "b_1", "a_1")]
    faults = Faults()
    assert len(list(map_rows("reddit", thanks, faults))) == 2 and faults.counts["duplicated row"] == 1


# ---- names and bad input

@pytest.mark.parametrize("given, source", [("News", "youtube"), ("amazon", "amazon"), ("humanual_opinion", "reddit"), ("politics", "medium"),
                                           ("wildchat_english", "wildchat"), ("snap-stanford/humanual-email", "enron"), ("Chat", "wildchat")])
def test_all_naming_schemes(given, source): assert source_name(given) == source


@pytest.mark.parametrize("given, meant", [("redit", "reddit"), ("humanual_boook", "book"), ("yutube", "youtube"), ("emails", "email")])
def test_near_misses(given, meant):
    with pytest.raises(DataError, match=f"Did you mean '{meant}'"): source_name(given)


def test_every_source_has_a_format(): assert set(formats) == set(ROWS)


@pytest.mark.parametrize("change, kind", [
    ({"user_id": None}, "unknown author"), ({"user_id": ["x"]}, "unknown author"), ({"completion": ""}, "empty reply"),
    ({"completion": " \n"}, "empty reply"), ({"completion": None}, "missing field"), ({"completion": 3}, "wrong type"),
    ({"completion": "[deleted]"}, "removed reply"), ({"prompt": None}, "missing field"), ({"prompt": []}, "no context"),
    ({"prompt": "[{]"}, "broken JSON"), ({"prompt": [1]}, "wrong type"), ({"prompt": "x" * 10**6}, "broken JSON"),
    ({"prompt": [{"role": "a", "content": 4}]}, "wrong type"), ({"post_id": ""}, "missing field"), ({"persona": "{"}, "broken JSON")])
def test_rows_that_cannot_be_used_are_counted_by_kind(change, kind):
    faults = Faults()
    assert list(map_rows("reddit", [raw_rows.reddit() | change], faults)) == []
    assert faults.counts == {kind: 1} and kind in FAULTS and len(faults.examples[kind][0]) <= 160
    with pytest.raises(RowFault) as e: map_row("reddit", raw_rows.reddit() | change)
    assert e.value.kind == kind and len(str(e.value)) < 400


def test_a_missing_column_is_named():
    raw = raw_rows.reddit()
    del raw["completion"]
    with pytest.raises(RowFault, match="field 'completion' is missing. Found: prompt"): map_row("reddit", raw)


@pytest.mark.parametrize("change, note", [
    ({"timestamp": None}, "time missing"), ({"timestamp": 0}, "time missing"), ({"timestamp": ""}, "time missing"),
    ({"timestamp": "yesterday"}, "time unreadable"), ({"timestamp": 126489600}, "time doubtful"), ({"timestamp": 9_000_000_000}, "time doubtful"),
    ({"metadata": "{broken"}, "metadata unreadable"), ({"metadata": [1]}, "metadata unreadable")])
def test_odd_rows_are_kept_and_noted(change, note):
    row = map_row("reddit", raw_rows.reddit() | change)
    assert note in row.notes and note in NOTES


def test_a_date_of_1974_is_kept_as_it_is():
    row = map_row("enron", raw_rows.enron() | {"timestamp": 126489600})
    assert row.time == 126489600.0 and "time doubtful" in row.notes


def test_empty_messages_and_unreadable_facts_in_the_context():
    raw = raw_rows.reddit()
    raw["prompt"][1] = {"role": "ann_07", "content": None, "metadata": "not json"}
    row = map_row("reddit", raw)
    assert names(row) == CALLED["reddit"] and {"empty message in the context", "metadata unreadable"} <= set(row.notes)


@pytest.mark.parametrize("moment", [WHEN, WHEN * 1000, WHEN * 10**6, WHEN * 10**9, str(WHEN), float(WHEN), "2023-11-14T22:13:20", "2023-11-14 22:13:20Z",
                                    "2023-11-14T23:13:20+01:00"])
def test_times_in_every_spelling(moment): assert utc_seconds(moment) == WHEN


anything = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
                        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3), max_leaves=6)


@given(anything)
@settings(max_examples=100, deadline=None)
def test_times_never_raise(value):
    time = utc_seconds(value)
    assert time is None or time - time == 0


KEYS = ("role", "content", "metadata", "kind", "snippet", "author", "authorChannelId", "authorDisplayName", "id", "store", "details",
        "categories", "description", "transcript", "subject", "from", "model", "value", "topLevelComment", "timestamp")
facts = st.dictionaries(st.sampled_from(KEYS), anything | st.dictionaries(st.sampled_from(KEYS), anything, max_size=4), max_size=6)
message = st.fixed_dictionaries({}, optional={"role": anything, "content": st.text(max_size=20) | anything, "metadata": facts | anything})
rows = st.fixed_dictionaries({}, optional={
    "prompt": st.lists(message, max_size=3) | anything, "completion": st.text(max_size=20) | anything, "post_id": anything, "persona": anything,
    "user_id": st.sampled_from(["0123456789abcdef", "UCx", "@x", "a b"]) | anything, "timestamp": anything, "metadata": facts | anything})


@given(st.sampled_from(sorted(ROWS)), rows)
@settings(max_examples=400, deadline=None)
def test_no_row_crashes_a_mapper(source, raw):
    try: row = map_row(source, raw)
    except RowFault as e: assert e.kind in FAULTS
    else:
        assert row.user_id and row.context_id and row.completion.strip() and set(row.notes) <= set(NOTES)
        assert all(isinstance(m.name, str) and isinstance(m.content, str) for m in shown_prompt(row))
        enrichment(row)


# ---- files

def lines(raws): return b"".join(json.dumps(r).encode() + b"\n" for r in raws)


def test_one_row_in_every_kind_of_file(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    raws = [raw_rows.youtube() | {"completion": f"Comment number {i}"} for i in range(700)]
    flat = [r | {"prompt": json.dumps(r["prompt"])} for r in raws]
    (tmp_path / "r.jsonl").write_bytes(lines(raws))
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(lines(raws)))
    pq.write_table(pa.Table.from_pylist(raws), tmp_path / "r.parquet")
    with open(tmp_path / "r.csv", "w", newline="", encoding="utf-8") as f:
        out = csv.DictWriter(f, list(flat[0]))
        out.writeheader()
        out.writerows(flat)
    want = [r.row_id for r in map_rows("news", raws)]
    for file in sorted(tmp_path.iterdir()):
        assert [r.row_id for r in map_rows("youtube", read_raw(file))] == want, file.name
    assert [n for n, _ in numbered_rows(tmp_path, start=1000)] == list(range(1001, 2801))


def test_broken_lines_are_counted_with_their_place(tmp_path):
    good = lines([raw_rows.reddit()])
    file = tmp_path / "r.jsonl"
    file.write_bytes(good + good[:50] + b"\n\n" + b'"text"\n' + b"[1]\n" + good.replace(b"rude", b"r\xfcde") + b"\xef\xbb\xbf" + good + good[:-1])
    faults = Faults()
    assert len(list(read_raw(file, faults))) == 4
    assert faults.counts == {"broken JSON": 3, "wrong encoding": 1} and "r.jsonl, item 2" in faults.examples["broken JSON"][0]
    with pytest.raises(RowFault, match="r.jsonl, item 2"): list(read_raw(file))


def test_old_tables_mix_encodings_and_line_ends(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(b'\xef\xbb\xbfuser_id,completion\r\nann,"caf\xe9\r\nnoir"\r\nben,na\xc3\xafve\rcleo,x\r\ndan,a,b\r\n')
    faults = Faults()
    assert [r["completion"] for r in read_raw(file, faults)] == ["café\nnoir", "naïve", "x"] or faults.counts
    assert faults.counts == {"wrong encoding": 1, "broken CSV": 1}


def test_an_open_quotation_mark_does_not_eat_the_memory(tmp_path):
    file = tmp_path / "r.csv"
    file.write_bytes(b'user_id,completion\nann,"open\n' + b"x" * 2**26)
    with pytest.raises(DataError, match="quotation mark may be missing"): list(read_raw(file))


@pytest.mark.parametrize("name, data", [("r.parquet", b"PAR1 nothing"), ("r.jsonl.gz", b"not gzip"), ("r.jsonl.gz", gzip.compress(b"{}" * 10**5)[:-20])])
def test_broken_files_are_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="r.*Cannot read|Cannot read.*r"): list(read_raw(tmp_path / name, Faults()))


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl"])
def test_utf_16_is_named(tmp_path, name):
    (tmp_path / name).write_text("user_id,completion\nann,x\n", encoding="utf-16")
    with pytest.raises(DataError, match="UTF-16. Convert it"): list(read_raw(tmp_path / name, Faults()))


def test_wrong_paths_say_what_to_do(tmp_path):
    (tmp_path / "r.txt").write_text("x")
    for where, what in ((tmp_path, "no file in this folder"), (tmp_path / "r.txt", "not '.txt'"), (tmp_path / "no.jsonl", "no such file")):
        with pytest.raises(DataError, match=what): read_raw(where)


def test_an_unreachable_hub_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert on_hub("snap-stanford/humanual-news")
    with pytest.raises(DataError, match="Cannot read nobody-here/no-such-rows from the hub"): list(read_raw("nobody-here/no-such-rows"))


def test_splits_of_a_published_set_are_chosen_by_pattern(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    splits = ("train0", "train1", "unseen_test0")
    for name in splits: (tmp_path / f"{name}.jsonl").write_bytes(lines([raw_rows.reddit() | {"completion": name}] * 2))
    files = "\n".join(f"  - split: {name}\n    path: {name}.jsonl" for name in splits)
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}\n---\n")
    found = [map_row("reddit", raw) for raw in hub_items(str(tmp_path), "train.*")]
    assert [r.completion for r in found] == ["train0"] * 2 + ["train1"] * 2
    assert names(found[0]) == CALLED["reddit"]
    with pytest.raises(DataError, match="no split fits 'val"): list(hub_items(str(tmp_path), "val.*"))


def test_reading_does_not_hold_the_file(tmp_path):
    raw = lines([raw_rows.reddit() | {"completion": "word " * 800}])
    (tmp_path / "r.jsonl").write_bytes(raw * 4000)
    tracemalloc.start()
    for row in read_raw(tmp_path / "r.jsonl"): map_row("reddit", row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * (tmp_path / "r.jsonl").stat().st_size


def test_faults_survive_a_file():
    one, two = Faults(), Faults()
    for i in range(5): one.add("empty reply", f"item {i}")
    two.add("time missing")
    both = Faults(**json.loads(json.dumps((one + two).to_dict())))
    assert both.counts == {"empty reply": 5, "time missing": 1} and len(both.examples["empty reply"]) == 3
    assert "<b>" not in Faults({"<b>": 1}, {"<b>": ["<b>|"]})._repr_markdown_()


def test_mapping_costs_no_more_than_a_few_times_reading_the_json():
    raw = raw_rows.reddit()
    raw["prompt"][0]["content"] = "word " * 700
    line = json.dumps(raw)

    def fastest(f, n=300):
        def once():
            start = time.process_time()
            for _ in range(n): f()
            return time.process_time() - start
        return min(once() for _ in range(7))
    assert fastest(lambda: map_row("reddit", raw)) < 80 * fastest(lambda: json.loads(line))


# ---- real data

@needs_data
def test_published_results():
    results = read_official(DATA / "humanlm_official_sample" / "chat_sample.jsonl")
    assert [(len(r.example.context), r.example.split) for r in results] == [(2, "train"), (4, "train")]
    for r in results:
        e = r.example
        assert [m.role for m in e.context] == ["user", "assistant"] * (len(e.context) // 2)
        assert all(m.name == e.user_id for m in e.context if m.role == "user")
        assert r.generated and "</response>" not in r.generated and e.persona.text.startswith("A user")
    assert len({r.example.context_id for r in results}) == 1 and len({r.example.id for r in results}) == 2


@needs_data
def test_youtube_comments():
    comments = list(read_raw(DATA / "youtube_comments" / "comments.jsonl"))
    raws = [raw_rows.row([video(c["video"])], c["text"], c["video"], c["author"], {}, c["date"]) for c in comments]
    faults = Faults()
    rows = list(map_rows("youtube", raws, faults))
    assert len(rows) + faults.counts["duplicated row"] + faults.counts["empty reply"] == len(raws) == 1055
    assert faults.counts["time missing"] == sum(r.time is None for r in rows)
    assert not any("&#39;" in r.completion or "<br" in r.completion for r in rows)
    assert any("&#39;" in c["text"] or "<br" in c["text"] for c in comments)
    random.Random(1).shuffle(raws)
    assert {r.row_id for r in map_rows("youtube", raws, Faults())} == {r.row_id for r in rows}


@needs_data
def test_posts_and_requests_as_contexts():
    for source, file, field in (("reddit", "reddit_aita_posts/posts.jsonl", "post"), ("wildchat", "wildchat_prompts/prompts.jsonl", "prompt")):
        for i, raw in enumerate(read_raw(DATA / file)):
            role = raw.get("poster", "f" * 64)
            row = map_row(source, raw_rows.row([said(role, raw[field])], "Yes.", raw.get("post_id", str(i)), role, {}))
            assert row.prompt[0].content == raw[field] and names(row) == ["HUMAN"]
