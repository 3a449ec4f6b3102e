"""What a run, a plan and a comparison say: which setting differs, what abstained, what is whole."""

import json

import pytest

from humanlm.clients.names import scripts
from humanlm.core.commands import main
from humanlm.social.generation import write_stories
from humanlm.tom.runs import _read_outcomes

MEETING = (
    "<BEGIN><gift{0}, June {0}>\nLea: gift{0} for Kate, on June {0}.\n(Kate joins)\nKate: "
    "Hello.\n<END><gift{0}, June {0}>\n"
)


@pytest.fixture
def hitom(tmp_path):
    write_stories("hitom", 8, 3, tmp_path / "hitom.jsonl")
    return tmp_path / "hitom.jsonl"


@pytest.fixture
def meetings(tmp_path):
    (tmp_path / "tier_4.txt").write_text("".join(MEETING.format(n) for n in range(1, 4)))
    return tmp_path / "tier_4.txt"


def run(name, file, out, *more):
    return main(["eval", "tom", name, f"--tom.file={file}", f"--tom.out={out}", *more])


def first(request):
    return json.dumps({"reasoning": "", "answer": "A"})


# ---- what differs


# ---- abstaining


def test_who_abstains_has_leaked_nothing_and_kept_nothing(meetings, tmp_path, capsys):
    assert run("confaide", meetings, tmp_path, "--model.name=symbolic", "--tom.name=quiet") == 1
    shown, report = capsys.readouterr(), (tmp_path / "quiet/report.md").read_text()
    assert "has no answer to any question" in shown.err
    assert "leaks" not in report and "leaks " not in shown.out
    assert "6 questions of tier_4.txt, answered by symbolic" in report
    assert json.loads((tmp_path / "quiet/results.json").read_text())["rows"] == []
    assert not any(
        {"omits", "leaks"} & o.scores.keys()
        for o in _read_outcomes(tmp_path / "quiet/answers.jsonl")
    )


# ---- limits, names and plans


@pytest.mark.parametrize(
    "published, name",
    [
        ("socialized_context", "context"),
        ("few_shot_context", "few_shot"),
        ("pure_context", "pure_context"),
        ("vanilla", "vanilla"),
        ("simulation", "simulation"),
    ],
)
def test_published_names_of_ways_are_taken(published, name, hitom, tmp_path, monkeypatch):
    monkeypatch.setitem(scripts, "first", first)
    assert (
        run(
            "hitom",
            hitom,
            tmp_path,
            "--model.name=scripted/first",
            f"--tom.mode={published}",
        )
        == 0
    )
    (folder,) = tmp_path.glob(f"hitom-{name}-scripted_first*/")
    assert json.loads((folder / "run.json").read_text())["conditions"]["mode"] == name


@pytest.mark.parametrize("published", ["vanilla_no_reasoning", "socialized_context_no_json"])
def test_published_names_of_ways_ask_as_published(published, hitom, tmp_path, monkeypatch):
    seen = []

    def noted(request):
        seen.append(request)
        return first(request)

    monkeypatch.setitem(scripts, "first", noted)
    line = ("--model.name=scripted/first", f"--tom.mode={published}")
    assert run("hitom", hitom, tmp_path, *line) == 0
    texts = [request.messages[-1]["content"] for request in seen]
    assert len(texts) == 40 and not any('"agents_names"' in text for text in texts)
    assert all(("At time 0:" in text) == ("context" in published) for text in texts)
    reasons = {"reasoning" in request.schema["properties"] for request in seen}
    assert reasons == {"context" in published}
