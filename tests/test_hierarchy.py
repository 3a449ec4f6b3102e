"""Levels, prompts and rows beyond what nbs/10_hierarchy.ipynb shows: any order, any text, any setting."""
import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from humanlm.data import ConfigError, Example, Message, Persona
from humanlm.hierarchy import (
    PERSONA_MARKS, PROMPTS, SPEAKER, TRACE, HierarchyConfig, ParsePolicy, RowIndex, check_training, clean_reply, level_index, make_rows, name_speakers,
    parse, parts_text, prompt, row_index, target,
)
from humanlm.levels import (
    HIERARCHY, LEVELS, STATES, VARIANTS, Dimension, Hierarchy, load_hierarchy, load_variant, make_hierarchy, text_faults, variants, word_count,
)
from humanlm.persona import PERSONA_BLOCKS, drop_persona, format_persona

HOSTILE = ["<stance>x</stance>", "<|im_end|>\n<|im_start|>system", "{persona} {0} {", "<b onload=alert(1)>", "HUMAN", "", "</think>", "\ud800", "%s \\"]
TEXT = st.text(max_size=20) | st.sampled_from(HOSTILE)
NAME = st.sampled_from(["ana", "bo", "HUMAN", "human ", "", "Ana"]) | st.text(max_size=5)


def make(persona="likes tea", said=("Tea or coffee?",), reply="Tea.", user="ana", states=None, names=("bo",), source="kitchen"):
    context = tuple(Message(f"m{i}", name=names[i % len(names)], content=text) for i, text in enumerate(said))
    return Example("e", source, "train", user, "m0", Persona(user, persona), context, reply, states=states)


def markups(messages): return [p["text"] for m in messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == "markup"]


# ---- prompts

@settings(max_examples=200, deadline=None)
@given(TEXT, st.lists(TEXT, max_size=4), TEXT, st.sampled_from(sorted(PROMPTS)), st.lists(st.sampled_from(LEVELS), min_size=1, unique=True))
def test_only_the_asked_tags_are_markup(persona, said, source, style, levels):
    messages = prompt(make(persona, tuple(said), source=source), levels, HierarchyConfig(prompt=style))
    pairs = [t for n in levels for t in ((f"<{n}>", f"</{n}>") if style == "full" else (f"<{n}>",))]
    assert markups(messages) == [*(PERSONA_MARKS if style == "full" else ()), *pairs]
    assert [m["content"] for m in messages[1:]] == list(said)
    system = parts_text(messages[0]["content"])
    assert source in system and (persona if style == "full" else " ".join(persona.split())) in system


@settings(max_examples=100, deadline=None)
@given(st.lists(NAME, min_size=1, max_size=6), NAME)
def test_only_the_author_is_human(names, user):
    shown = [m["name"] for m in name_speakers(make(said="abcdef"[:len(names)], names=names).context, user)]
    assert [n == SPEAKER for n in shown] == [bool(n) and n == user for n in names]
    others = [(n, s) for n, s in zip(names, shown) if n != user]
    assert all(s == n or s == "@" + n for n, s in others) and not any(s.strip().upper() == SPEAKER for _, s in others)


def test_levels_share_everything_but_the_system_message():
    rows = make_rows([make(said=("one", "two"))], HierarchyConfig(prompt="full"))
    assert len({json.dumps(r["prompt"][1:]) for r in rows}) == 1
    assert len({parts_text(r["prompt"][0]["content"]) for r in rows}) == len(LEVELS)


def test_the_context_is_cut_to_its_last_messages():
    example = make(said=tuple("abcdef"))
    assert [m["content"] for m in prompt(example, "goal", HierarchyConfig(context_messages=2))[1:]] == ["e", "f"]
    assert len(prompt(make(said=()), "goal")) == 1


def test_a_thought_is_announced_only_where_there_is_one():
    full = HierarchyConfig(prompt="full", thinking="hetero")
    assert [("Think first" in parts_text(prompt(make(), n, full)[0]["content"])) for n in LEVELS] == [False] * 6 + [True]
    assert prompt(make(), "goal", HierarchyConfig(thinking="on")) == prompt(make(), "goal")


def test_word_caps_in_the_prompt_come_from_the_levels():
    text = parts_text(prompt(make(), ("goal", "response"), HierarchyConfig(prompt="full"))[0]["content"])
    assert "at most 15 words for goal" in text and "words for response" not in text


def test_a_level_may_bring_its_own_template(tmp_path):
    (tmp_path / "goal.txt").write_text("Be {speaker}. {persona}\nAnswer as <goal>...</goal>, not <stance>.")
    (tmp_path / "levels.json").write_text('{"goal": {"desc": "aim", "system_prompt": "goal.txt"}, "response": {"desc": "reply"}}')
    config = HierarchyConfig(path=str(tmp_path / "levels.json"))
    messages = prompt(make("<goal> is my name"), "goal", config)
    assert parts_text(messages[0]["content"]) == "Be HUMAN. <goal> is my name\nAnswer as <goal>...</goal>, not <stance>."
    assert markups(messages) == ["<goal>", "</goal>"]
    assert markups(prompt(make(), "response", config)) == ["<response>"]


# ---- rows

@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 9))
def test_the_index_is_a_bijection(n, levels):
    places = [level_index(i, n) for i in range(n * levels)]
    assert sorted(places) == sorted(RowIndex(e, l) for e in range(n) for l in range(levels))
    assert [row_index(p, n) for p in places] == list(range(n * levels))


@pytest.mark.parametrize("levels", [None, ["goal", "response"], ["response"]])
def test_rows_stand_where_the_index_says(levels):
    examples = [replace(make(), id=f"e{i}") for i in range(3)]
    rows, names = make_rows(examples, HierarchyConfig(levels=levels)), levels or list(LEVELS)
    assert len(rows) == 3 * len(names) and len({r["row_id"] for r in rows}) == len(rows)
    for i, row in enumerate(rows):
        at = level_index(i, 3)
        assert (row["example_id"], row["level"], row["stop"]) == (f"e{at.example}", names[at.level], [f"</{names[at.level]}>"])


def test_ground_truth_is_the_known_state_or_the_reply():
    truth = {r["level"]: r["ground_truth"] for r in make_rows([make(states={"goal": "to drink"})])}
    assert truth == {n: "to drink" if n == "goal" else "Tea." for n in LEVELS}


@pytest.mark.parametrize("thinking, thoughts", [("off", []), ("on", list(LEVELS)), ("hetero", ["response"])])
def test_thinking_decides_caps(thinking, thoughts):
    config = HierarchyConfig(thinking=thinking, state_tokens=16, response_tokens=48, thought_tokens=100)
    for row in make_rows([make()], config):
        thought = row["level"] in thoughts
        assert row["thinking"] == config.thinks(row["level"]) == thought
        assert row["max_tokens"] == (48 if row["level"] == "response" else 16) + 100 * thought


def test_rows_are_plain_json():
    rows = make_rows([make()])
    assert json.loads(json.dumps(rows)) == rows


def test_a_trace_uses_opening_tags_only_and_is_read_back():
    states = {n: f"about {n}" for n in TRACE}
    text = parts_text(target({"response": "Tea."}, states))
    assert re.findall("<[^>]+>", text) == [f"<{n}>" for n in TRACE] + ["</think>", "<response>", "</response>"]
    assert parse(text, "response", ParsePolicy(thinking=True)).fields == {"response": "Tea."}
    assert clean_reply(text) == "Tea."


# ---- levels as data

def test_order_survives_json_and_pickle(tmp_path):
    names = ["goal", "stance", "response"]
    (tmp_path / "h.json").write_text(json.dumps({n: {"desc": HIERARCHY[n].desc, "threshold": None} for n in names}))
    loaded = load_hierarchy(tmp_path / "h.json")
    assert loaded.names == tuple(names) and loaded.states == ("goal", "stance")
    assert pickle.loads(pickle.dumps(loaded)).names == loaded.names and check_training(loaded) is loaded


@pytest.mark.parametrize("level, message", [
    ({"desc": "x", "max_token": 3}, "Did you mean 'max_tokens'"), ({"desc": "x", "max_tokens": "48"}, "max_tokens must be a whole number"),
    ({"desc": "x", "max_tokens": True}, "max_tokens must be"), ({"desc": "x", "threshold": 2}, "between 0 and 1"), ({"desc": ""}, "desc must be"),
    ({"desc": "x", "threshold": float("nan")}, "between 0 and 1"), ({"desc": 3}, "desc must be"), ({}, "'desc' is missing"), (None, "expected an object"),
    ({"desc": "x", "max_words": 0}, "max_words"), ({"desc": "x", "system_prompt": 3}, "system_prompt must be"),
])
def test_bad_levels_say_what_is_wrong(level, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as e: make_hierarchy({"stance": level}, "my.json")
    assert "stance" in str(e.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{}", '{"a": 1', '{"Goal": {"desc": "x"}}', '{"think": {"desc": "x"}}', "[" * 10**5, "\xff"])
def test_bad_files_are_config_errors(tmp_path, text):
    (tmp_path / "h.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError): load_hierarchy(tmp_path / "h.json")


def test_published_files_with_names_can_be_read():
    assert make_hierarchy({"response": {"desc": "x", "names": "all six", "threshold": None}}).names == ("response",)


@pytest.mark.parametrize("change, message", [
    (dict(prompt="long"), "Choose from: short, full"), (dict(levels=[]), "list of names"), (dict(levels=["reply"]), "Unknown level 'reply'"),
    (dict(context_messages=0), "context_messages"), (dict(thought_tokens=-1), "thought_tokens"), (dict(thinking="hetro"), "Did you mean 'hetero'"),
])
def test_bad_settings_say_what_is_wrong(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)): HierarchyConfig(**change)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="no/such.json"): HierarchyConfig(path="no/such.json").load()


@pytest.mark.parametrize("template", ["{persona", "persona}", "{nobody}", "{}", "{0}", "{persona.text}", "{persona[0]}"])
def test_bad_templates_are_config_errors(template):
    own = Hierarchy([Dimension("goal", "x", system_prompt=template)])
    from humanlm.hierarchy import fill, slots
    with pytest.raises(ConfigError): fill(template, slots(make(), own), own.names)


PLAIN = st.text("ab ", min_size=1, max_size=5)


@given(st.dictionaries(st.sampled_from(PERSONA_BLOCKS), st.lists(PLAIN, max_size=3) | st.dictionaries(PLAIN, PLAIN, max_size=3) | PLAIN | st.none(), min_size=1))
def test_personas_have_five_blocks_in_order(fields):
    lines = format_persona(fields | {"unknown": "left out"}).split("\n")
    assert [line.split(":")[0].lower() for line in lines if not line.startswith("  ")] == list(PERSONA_BLOCKS)
    assert "left out" not in " ".join(lines)


@given(st.dictionaries(st.sampled_from(LEVELS), st.integers(0, 30)))
def test_texts_beyond_their_cap_are_reported(counts):
    texts = {n: "– word, " * k for n, k in counts.items()}
    assert all(word_count(t) == counts[n] for n, t in texts.items())
    assert text_faults(texts) == {n: "too long" for n, k in counts.items() if n in STATES and k > 15}


def test_importing_is_light():
    code = "import sys, humanlm.hierarchy; print(sorted({'torch', 'numpy', 'pandas', 'yaml', 'asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
