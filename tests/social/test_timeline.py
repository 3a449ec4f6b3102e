"What the viewer shows is what the record says, as text, with its faults marked."

import pages
import pytest
from pages import read

from humanlm.social.contexts import Context, make_context, split_mental
from humanlm.social.memories import decode
from humanlm.social.viewer import timeline_page
from humanlm.social.violations import violations

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
    steps = decode(GOLDEN).steps
    seen = {name: [step.observations[name] for step in steps] for name in GOLDEN.agents}
    assert [split_mental(text) for text in seen["Per"]] == [
        ("Ida and Per are in the barn.", ""),
        ("Per hums. Ida hides the bell.", "She is up to something."),
        ("Per leaves the barn", ""),
        ("Ida moves the bell", ""),
    ]
    assert seen["Ida"] == [
        "Ida and Per are in the barn.",
        "Ida hides the bell",
        "Per leaves the barn",
        "Ida moves the bell",
    ]
    assert seen["Moa"] == ["none", "none", "A man comes by.", "none"]
    assert [(v.code, v.timestep, v.agent) for v in violations(GOLDEN)] == [("I10", 3, "Per")]


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
    assert "same_as" not in reader.text


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
        assert str(found) in reader.text
