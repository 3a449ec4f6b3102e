"Contexts survive changes of shape, decode once, and keep thoughts to those who think them."

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import DataError
from humanlm.social.contexts import NONE, Context, make_context, read_context
from humanlm.social.memories import (
    decode,
    memories,
    perspective,
)
from humanlm.social.violations import repair, violations

PIECES = st.sampled_from(
    [
        "<same_as_state />",
        "<same_as_last_action />",
        "<same_as_last_action_0 />",
        "<same_as_last_action_1/>",
        "<same_as_next_state />",
        "[SAME AS STATE]",
        "<mental_state>",
        "</mental_state>",
        "<same_as",
        "_state />",
        " ",
        ".",
        "none",
        "A",
        "B: ",
        ":",
        "\n",
        '"',
        "<b>",
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)
NAMES = st.sampled_from(["A", "B", "A B", "Anna", "<b>", "none"])


@st.composite
def contexts(draw) -> Context:
    "Contexts with hostile names and texts"
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    step = st.tuples(
        TEXTS,
        st.fixed_dictionaries(dict.fromkeys(names, TEXTS)),
        st.fixed_dictionaries(dict.fromkeys(names, TEXTS)),
    )
    return make_context(names, draw(st.lists(step, max_size=4)))


# ---- shapes


@settings(max_examples=50, deadline=None)
@given(contexts())
def test_lists_and_maps_hold_the_same(context):
    assert read_context(json.dumps(context.to_lists())) == context
    assert read_context(json.dumps(context.to_published())).steps == context.steps


# ---- decoding


@settings(max_examples=50, deadline=None)
@given(contexts())
def test_decoding_twice_changes_nothing(context):
    decoded = decode(context)
    assert decode(decoded) == decoded


def one(state=NONE, seen=None, done=None):
    return state, seen or {}, done or {}


def test_the_published_decoder_adds_no_deed_to_what_an_actor_perceives():
    context = make_context(
        "ABC",
        [
            one(done={"A": "waves"}),
            one("It rains", {"A": "<same_as_state />", "B": "<same_as_last_action />"}),
            one(seen={"A": "<same_as_last_action />", "C": "A cat"}, done={"C": "sings"}),
            one(),
        ],
    )

    def seen(**options):
        return [step.observations for step in decode(context, **options).steps]

    nobody = dict.fromkeys("ABC", NONE)
    assert seen(deeds=False) == [
        nobody,
        nobody | {"A": "It rains", "B": "A waves"},
        nobody | {"C": "A cat"},
        nobody,
    ]
    ours = seen()
    assert ours[1]["A"] == "A waves. It rains" and ours[3] == nobody | {"C": "C sings"}


def test_several_actors_are_told_in_order_and_by_index():
    tags = {
        "A": "<same_as_last_action_1 />",
        "B": "<same_as_last_action_0 />",
        "C": "<same_as_last_action />",
        "D": "<same_as_last_action_2 />",
    }
    context = make_context("ABCD", [one(done={"B": "sings.", "A": "A dances"}), one(seen=tags)])
    seen = decode(context).steps[1].observations
    assert seen == {
        "A": "A dances. B sings",
        "B": "B sings. A dances",
        "C": "A dances. B sings",
        "D": NONE,
    }


def test_an_action_does_not_outlive_the_next_step():
    context = make_context(
        "AB",
        [one(done={"A": "waves"}), one(), one(seen={"B": "<same_as_last_action /> Quiet."}), one()],
    )
    decoded = decode(context)
    assert [step.observations["A"] for step in decoded.steps] == [NONE, "A waves", NONE, NONE]
    assert decoded.steps[2].observations["B"] == "Quiet."


def test_thoughts_do_not_travel():
    secret = "<mental_state>I hate this</mental_state>"
    context = make_context(
        "AB",
        [
            one(done={"A": f"smiles {secret}"}),
            one(
                f"All is well. {secret}",
                {"A": "<same_as_last_action />", "B": "<same_as_last_action /> <same_as_state />"},
            ),
        ],
    )
    seen = decode(context).steps[1].observations
    assert seen == {"A": f"A smiles {secret}", "B": "A smiles. All is well."}


# ---- nested views


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from("ABCD")), max_size=8),
    st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4),
)
def test_perspective_is_joint_witnessing(events, chain):
    "With one event per step, what the chain knows are the events that all of it witnessed"
    context = make_context(
        "ABCD", [one(seen=dict.fromkeys(who, f"Event {i}")) for i, who in enumerate(events)]
    )
    known = memories(perspective(context, chain))[chain[-1]]
    assert known == [f"Event {i}" for i, who in enumerate(events) if set(chain) <= who]


def test_actions_that_the_viewer_did_not_perceive_are_gone():
    context = make_context(
        "AB",
        [
            one(seen={"A": "A room."}, done={"B": "hides"}),
            one(seen={"B": "Dark."}),
            one(seen={"A": "Light."}),
        ],
    )
    assert [step.actions["B"] for step in perspective(context, ["A", "B"]).steps] == [NONE, NONE]


# ---- violations and repairs

GOOD = [
    one(
        "A and B are in the den.",
        {"A": "<same_as_state /> <mental_state>I am bored.</mental_state>"},
        {"A": "lights the lamp"},
    ),
    one("The lamp is lit.", {"A": "<same_as_last_action />", "B": "I see a light."}),
]


def changed(steps=GOOD, agents="AB", **changes) -> Context:
    "A sound record with some steps or fields replaced"
    return make_context(agents, steps).model_copy(update=changes)


def lists(observation: str) -> Context:
    "A record that a model wrote, whose second observation is this"
    steps = changed().to_lists()
    steps["socialized_context"][1]["observations"][1] = observation
    return read_context(steps)


def without(agent: str) -> Context:
    context = changed()
    del context.steps[1].actions[agent]
    return context


def timed(*timesteps: str) -> Context:
    context = changed()
    for step, timestep in zip(context.steps, timesteps):
        step.timestep = timestep
    return context


FIXTURES = {
    "I1": [
        changed(agents_names=["A", "B", "B"]),
        changed(agents_names=["A", "B", " "]),
        changed(agents_names=[]),
    ],
    "I2": [without("A"), changed(agents_names=["A"]), changed([one(seen={"Bee": "x"}), *GOOD])],
    "I3": [lists("no name here"), lists("A: again"), lists(": nobody"), lists("B is tired")],
    "I4": [
        timed("0", "2"),
        timed("1", "0"),
        timed("dawn", "dusk"),
        timed("-1", "0"),
        timed("", ""),
    ],
    "I5": [
        changed([*GOOD, one(seen={"A": "x"}, done={"B": "sings"})]),
        changed([*GOOD, one(seen={"A": "x"}, done={"A": "x", "B": "y"})]),
    ],
}


def codes(context: Context) -> set[str]:
    return {v.code for v in violations(context)}


def test_a_sound_record_has_no_violation_and_needs_no_repair():
    assert violations(changed()) == [] and repair(changed()) == (changed(), [])


@pytest.mark.parametrize(
    "code, context", [(code, c) for code, found in FIXTURES.items() for c in found]
)
def test_each_invariant_is_provoked_and_repaired_if_mechanical(code, context):
    assert code in codes(context)
    before = context.model_copy(deep=True)
    mended, notes = repair(context)
    assert context == before, "repair must not change its input"
    assert code not in codes(mended)
    assert bool(notes) == (mended != context)
    assert repair(mended) == (mended, [])


# ---- raw data


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2",
        "no such file.json",
        "\x00",
        "{}",
        "null",
        '{"simulations": []}',
        "[" * 100_000,
    ],
)
def test_unreadable_sources_are_data_errors(text):
    with pytest.raises(DataError):
        read_context(text)


# ---- scores


def test_hostile_sizes_take_little_time():
    "No step of reading, decoding or checking is quadratic in one long text"
    for text in (
        "<" * 200_000,
        "<same_as_state />" * 20_000,
        "<mental_state>" * 20_000,
        " . " * 60_000,
        "[same as state" * 20_000,
        "A is in " * 30_000,
    ):
        context = make_context(
            "AB",
            [
                one(text, {"A": text, "B": "<same_as_state />"}, {"A": "waves"}),
                one(seen={"B": text}),
            ],
        )
        started = time.process_time()
        violations(context), repair(context), context._repr_html_()
        assert time.process_time() - started < 5
