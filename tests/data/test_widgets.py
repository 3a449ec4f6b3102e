"Groups of training samples are shown as they were written, and nothing that is shown can run."

from dataclasses import replace

import pytest
from pages import CHROMIUM, HOSTILE, in_browser, read

from humanlm.data.records import Example, Message, Persona
from humanlm.data.trajectory import Score, Trajectory, load_trajectories, save_trajectories
from humanlm.data.widgets import TrajectoryViewer


def example(id="1", words="hello", persona="plain", reply="yes", **more) -> Example:
    talk = (Message("0", name="bram", content=words),)
    return Example(
        id, "invented", "test", "yara", id, Persona("yara", persona), talk, reply, **more
    )


def trajectory(text="for it", step=0, level="stance", group=0, reason="because") -> Trajectory:
    score = Score("0", 0.5, "scored", reason, ("point",), (0.5,))
    return Trajectory(
        f"{step}{level}{group}{text}",
        f"r{group}/{level}",
        group,
        step,
        level,
        (),
        [1],
        [2],
        [True],
        text=text,
        scores={level: score},
        advantage=0.0,
        example_id=f"r{group}",
    )


def test_the_viewer_reads_what_a_run_wrote(tmp_path):
    for step in (0, 5, 10, 15):
        save_trajectories(
            tmp_path / f"step-{step:06d}.parquet",
            [trajectory(step=step, level=level) for level in ("stance", "goal")],
        )
    viewer = TrajectoryViewer(load_trajectories(tmp_path), steps=2)
    page = viewer._repr_html_()
    assert viewer.steps == [0, 5, 10, 15] and viewer.levels == ["stance", "goal"]
    assert page.count("<details open") == 1 and "goal · step 15" in page and "step 5" not in page


def test_persona_and_truth_stand_above_a_group_whose_example_is_known():
    known = example("r0", states={"stance": "known"}, persona="likes tea")
    page = TrajectoryViewer([trajectory()], examples=[known]).html()
    assert "likes tea" in page and "known" in read(page).text
    assert "persona" not in TrajectoryViewer([trajectory()]).html()


def hostile(text):
    person = example(text, text, persona=text, reply=text, states={text: text})
    sample = replace(trajectory(text, level=text, reason=text), example_id=text, row_id=text)
    return TrajectoryViewer([sample], examples=[person])


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_shown_stays_text(text):
    read(hostile(text)._repr_html_())


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium or Chrome: apt install chromium")
def test_no_candidate_runs_in_a_real_browser(tmp_path):
    attacks = [
        "<script>document.title = 'ran'</script>",
        "<img src=x onerror=\"document.title = 'ran'\">",
        "' onmouseover='x' autofocus onfocus='document.title = 1",
    ]
    shown = "".join(hostile(attack).html() for attack in attacks)
    page = in_browser(f"<!doctype html><meta charset=utf-8><title>quiet</title>{shown}", tmp_path)
    assert "<title>quiet</title>" in page, "a text ran as a script"
    body = page.split("</title>")[1]
    assert not any(f"<{name}" in body for name in ("script", "img"))
