"What the viewer shows is what the record says, as text, with its faults marked."

import pages
import pytest
from pages import read

from humanlm.social.timeline import ContextTable, _objects, beliefs
from humanlm.social.viewer import Timeline, timeline_page
from humanlm.stories.contexts import Context, make_context
from humanlm.stories.violations import step_names, violations

HOSTILE = [*pages.HOSTILE, "<same_as_state />", "<mental_state>x", "a: b\n\n- c", ":1", ""]

GOLDEN = make_context(
    ["Ida", "Per", "Moa"],
    [
        (
            "Ida and Per are in the barn.",
            {"Ida": "[SAME AS STATE]", "Per": "<same_as_state />"},
            {"Ida": "hides the bell", "Per": "hums"},
        ),
        (
            "The bell is in the hay.",
            {
                "Per": "<same_as_last_action_0 /> <mental_state>She is up to "
                "something.</mental_state>"
            },
            {"Per": "leaves the barn"},
        ),
        (
            "Ida is in the barn.",
            {"Ida": "<same_as_last_action />", "Moa": "A man comes by."},
            {"Ida": "moves the bell"},
        ),
        ("The bell is in the cart.", {"Per": "<same_as_last_action />"}, {}),
    ],
)


# ---- the golden record


def test_perceptions_and_written_out_texts_of_the_golden_record():
    shown = ContextTable.of(GOLDEN)
    assert {name: [cell.perceives for cell in row] for name, row in shown.cells.items()} == {
        "Ida": [True, True, True, True],
        "Per": [True, True, True, True],
        "Moa": [False, False, True, False],
    }
    assert [cell.saw for cell in shown.cells["Per"]] == [
        "Ida and Per are in the barn.",
        "Per hums. Ida hides the bell.",
        "Per leaves the barn",
        "Ida moves the bell",
    ]
    assert [cell.saw for cell in shown.cells["Ida"]] == [
        "Ida and Per are in the barn.",
        "Ida hides the bell",
        "Per leaves the barn",
        "Ida moves the bell",
    ]
    assert (
        shown.cells["Per"][1].thinks == "She is up to something."
        and shown.cells["Per"][1].does == "leaves the barn"
    )
    assert [(found.code, found.timestep, found.agent) for found in shown.violations] == [
        ("I10", 3, "Per")
    ]


def test_the_page_holds_what_the_record_says():
    reader = read(timeline_page(GOLDEN, title="Bells", source="Ida hid a bell."))
    for text in (
        "Bells",
        "Ida hid a bell.",
        "Per hums. Ida hides the bell.",
        "She is up to something.",
        "warning I10, step 3, Per",
        "0 errors, 1 warning.",
    ):
        assert text in reader.text
    assert "same_as" not in reader.text and reader.classes.count("flagged") == 1


def test_beliefs_follow_what_was_seen_together():
    found = {(belief.object, belief.chain): belief.places for belief in beliefs(GOLDEN)}
    assert _objects(GOLDEN) == ["bell"]
    assert found["bell", ()] == [None, "hay", None, "cart"]
    assert len(found) == 1 + 3 + 6
    many = make_context(
        [f"P{i}" for i in range(30)], [("The cup is in the box.", {"P0": "<same_as_state />"}, {})]
    )
    assert len(beliefs(many)) == 31


@pytest.mark.parametrize(
    "times, named",
    [
        (("1", "2", "3", "4"), ("1", "2", "3", "4")),
        (("0", "0", "", "dusk"), ("0 (no. 1)", "0 (no. 2)", "(no. 3)", "dusk")),
    ],
)
def test_violations_call_a_step_what_its_column_is_called(times, named):
    record = GOLDEN.model_copy(deep=True)
    for step, time in zip(record.steps, times):
        step.timestep = time
    shown, page = ContextTable.of(record), timeline_page(record)
    assert shown.timesteps == list(named)
    assert f"I10, step {named[3]}, Per" in read(page).text


def test_a_page_leads_back_and_its_words_do_not_claim_presence():
    page = timeline_page(
        GOLDEN, title="bells-7", links={"all records": "/", "<next>": "/page/a?x='1'&y"}
    )
    assert "<title>bells-7</title>" in page and '<a href="/">all records</a>' in page
    assert "&lt;next&gt;" in page and "present" not in read(page).text.lower()


# ---- hostile and broken records


@pytest.mark.parametrize("text", HOSTILE)
def test_everything_stays_text(text):
    context = make_context(
        [text, "B"],
        [
            (text, {text: text, "B": text}, {text: text}),
            (text, {"B": "<same_as_last_action />"}, {"B": text}),
        ],
    )
    context.steps[0].timestep = text
    context.steps[1].actions[text + "?"] = text
    read(timeline_page(context, title=text, source=text, links={text: "/"}))
    read(Timeline(context)._repr_html_())
    read(context._repr_html_())


@pytest.mark.parametrize(
    "context",
    [
        Context(agents_names=[], socialized_context=[]),
        make_context("A", []),
        make_context("AA", [("", {}, {"A": "x"})]),
        make_context("AB", [("", {}, {})]).model_copy(update={"agents_names": ["C"]}),
    ],
)
def test_broken_records_are_shown_with_their_violations(context):
    reader = read(timeline_page(context))
    for found in violations(context):
        assert found.told(step_names(context)) in reader.text
