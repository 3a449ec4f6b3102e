"""What a run, a plan and a comparison say: which setting differs, what abstained, which faults labels have, and that nothing is cut in two."""

import io
import json
import random
import sys

import pytest
from fantom_rows import fantom_set, right_answer

from humanlm.benchmarks.sets import benchmarks
from humanlm.clients.names import scripts
from humanlm.harness.comparison import CompareConfig, compare_runs
from humanlm.harness.contexts import write_stories
from humanlm.harness.respondent import contexts_text, read_outcomes
from humanlm.stories.answers import answer
from humanlm.stories.world import read_story
from humanlm.tom import main

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
    return main(
        ["run", name, f"--tom.file={file}", f"--tom.out={out}", "--tom.resamples=50", *more]
    )


def first(request):
    return json.dumps({"reasoning": "", "answer": "A"})


# ---- what differs


def test_a_mismatch_names_the_one_setting_that_differs(hitom, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(scripts, "first", first)
    same = ("--model.name=scripted/first", "--tom.name=mine")
    assert run("hitom", hitom, tmp_path, *same, "--tom.limit=20") == 0
    for more, said in (
        (["--answer.samples=9", "--tom.limit=20"], ["answer.samples: 5 in the run, 9 now"]),
        (
            ["--tom.limit=30"],
            ["questions.number: 20 in the run, 30 now", "questions.last: 19 in the run, 29 now"],
        ),
        (
            ["--tom.limit=20", "--rows.labels=principled"],
            ["rows.labels: as_shipped in the run, principled now"],
        ),
    ):
        capsys.readouterr()
        assert run("hitom", hitom, tmp_path, *same, *more) == 2
        told = [
            line.strip(" -")
            for line in capsys.readouterr().err.splitlines()
            if " in the run, " in line
        ]
        assert all(line in told for line in said) and not any(
            line.startswith(("answer:", "questions:")) for line in told
        )
        assert [line for line in told if not line.startswith("questions.")] == [
            line for line in said if not line.startswith("questions.")
        ]


def test_a_comparison_is_saved_although_nobody_reads_it(hitom, tmp_path, monkeypatch):
    for name in ("symbolic", "first place"):
        assert (
            run(
                "hitom",
                hitom,
                tmp_path,
                f"--model.name={name}",
                f"--tom.name={name[:5]}",
                "--tom.baselines=false",
                "--tom.limit=10",
            )
            == 0
        )

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        compare_runs(
            [tmp_path / "symbo", tmp_path / "first"], CompareConfig(save=str(tmp_path / "x.md"))
        )
    assert "symbo → first" in (tmp_path / "x.md").read_text()


# ---- abstaining


def test_who_abstains_has_leaked_nothing_and_kept_nothing(meetings, tmp_path, capsys):
    assert run("confaide", meetings, tmp_path, "--model.name=symbolic", "--tom.name=quiet") == 1
    shown, report = capsys.readouterr(), (tmp_path / "quiet/report.md").read_text()
    assert "no answer to any of 6 questions: 0 failed, 6 abstained" in shown.err
    own = report.partition("## Beside trivial baselines")[0]
    assert (
        "0 / " not in own
        and "leaks" not in own
        and "\nquiet " not in shown.out
        and "leaks " not in shown.out
    )
    assert (
        "0 of 6 questions of tier_4.txt answered by symbolic" in report
        and "6 abstained." in report
        and "None: no answer to any of 6 questions" in report
    )
    assert json.loads((tmp_path / "quiet/results.json").read_text())["lines"] == []
    assert not any(
        {"omits", "leaks"} & o.scores.keys()
        for o in read_outcomes(tmp_path / "quiet/answers.jsonl")
    )


def test_some_abstentions_are_counted_beside_answers(hitom, tmp_path, capsys):
    rows = [json.loads(line) for line in hitom.read_text().splitlines()]
    rows[0]["question"] = "Why did they all leave?"
    hitom.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        run("hitom", hitom, tmp_path, "--model.name=symbolic", "--tom.name=mixed", "--tom.limit=10")
        == 0
    )
    assert (
        "9 of 10 questions of hitom.jsonl answered by symbolic, way: vanilla. 1 abstained."
        in (tmp_path / "mixed/report.md").read_text()
    )


def test_contexts_of_abstentions_are_not_counted_as_unused(hitom, tmp_path, capsys):
    rows = [
        json.loads(line) | {"question": "Why did they all leave?"}
        for line in hitom.read_text().splitlines()[:4]
    ]
    hitom.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("hitom", hitom, tmp_path, "--model.name=memory", "--tom.name=m") == 1
    shown, outcomes = capsys.readouterr(), read_outcomes(tmp_path / "m/answers.jsonl")
    assert (
        "contexts used: 0 of 4"
        not in shown.out + shown.err + (tmp_path / "m/report.md").read_text()
        and contexts_text(outcomes) == "contexts used: 0 of 0; 4 abstained"
    )


# ---- limits, names and plans


@pytest.mark.parametrize("limit, sets", [(1, 1), (11, 1), (20, 2), (10_000, 3)])
def test_a_limit_keeps_sets_of_conversations_whole(limit, sets, tmp_path, monkeypatch):
    rows = [fantom_set(n, random.Random(n)) for n in range(3)]
    (tmp_path / "fantom.json").write_text(json.dumps(rows))
    items = benchmarks["fantom"].load(tmp_path / "fantom.json").items
    answers = {item.question: right_answer(item) for item in items}
    monkeypatch.setitem(
        scripts,
        "knowing",
        lambda request: json.dumps(
            {
                "reasoning": "",
                "answer": next(
                    (a for q, a in answers.items() if q in request.messages[-1]["content"]), "?"
                ),
            }
        ),
    )
    assert (
        run(
            "fantom",
            tmp_path / "fantom.json",
            tmp_path,
            "--model.name=scripted/knowing",
            "--tom.name=f",
            f"--tom.limit={limit}",
        )
        == 0
    )
    names = list(dict.fromkeys(item.set_id for item in items))[:sets]
    assert [o.id for o in read_outcomes(tmp_path / "f/answers.jsonl")] == [
        item.id for item in items if item.set_id in names
    ]


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
            "--tom.limit=5",
        )
        == 0
    )
    (folder,) = tmp_path.glob(f"hitom-{name}-scripted_first*/")
    assert json.loads((folder / "run.json").read_text())["conditions"]["mode"] == name


@pytest.mark.parametrize(
    "published, said",
    [
        ("socialised_context", "Did you mean 'socialized_context'?"),
        ("vanilla_no_reasoning", "take vanilla with --answer.reasoning false"),
        ("socialized_context_no_json", "take context with --answer.rendering text"),
        ("generate_socialized_context", "take the command `tom contexts`"),
    ],
)
def test_names_that_are_no_way_here_lead_to_what_is(published, said, hitom, tmp_path, capsys):
    assert run("hitom", hitom, tmp_path, f"--tom.mode={published}") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "model, said",
    [
        (
            "symbolic",
            "warning   symbolic cannot answer 6 of 6 questions that were tried; most often: ",
        ),
        ("scripted/first", ""),
    ],
)
def test_a_plan_warns_of_a_rule_that_cannot_answer(
    model, said, meetings, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(scripts, "first", first)
    assert run("confaide", meetings, tmp_path / "runs", f"--model.name={model}", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert said in shown and ("warning" in shown) == bool(said) and not (tmp_path / "runs").exists()


def test_a_plan_does_not_warn_of_a_rule_that_can(hitom, tmp_path, capsys):
    for model in ("symbolic", "memory", "first place"):
        assert run("hitom", hitom, tmp_path / "runs", f"--model.name={model}", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "symbolic cannot" not in shown and "first place cannot" not in shown


def test_a_plan_lists_why_rows_cannot_be_used(hitom, tmp_path, capsys):
    rows = [json.loads(line) for line in hitom.read_text().splitlines()]
    for row in rows[:12]:
        row["answer"] = "nowhere"
    hitom.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("hitom", hitom, tmp_path / "runs", "--dry-run") == 0
    told = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("cannot be used: ")
    ]
    assert (
        told[0]
        == "cannot be used: hitom.jsonl, row 1: the answer 'nowhere' is not among the choices."
        and told[10:] == ["cannot be used: 2 more rows"]
    )


# ---- labels


@pytest.mark.parametrize("fault", ["F1'", "F1"])
def test_the_fault_that_fits_a_file_best_is_named(fault, tmp_path, capsys):
    write_stories("tomi", 60, 3, tmp_path / "tomi.txt")
    rows, other = [], 0
    for item in benchmarks["tomi"].load(tmp_path / "tomi.txt"):
        label, shipped = (
            answer(read_story(item.source), item.question, policy).text
            for policy in (fault, "as_shipped")
        )
        rows.append(
            {
                "story": item.source,
                "question": item.question,
                "cands": [],
                "correct_answer": label,
                "set_id": item.set_id,
            }
        )
        other += label == shipped
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert other < len(rows) == 360
    assert run("tomi", tmp_path / "labelled.jsonl", tmp_path, "--model.name=symbolic") == 0
    said = f'The fault {fault} fits best: with --model.policy "{fault}" it agrees with 360 of 360.'
    assert (
        said in capsys.readouterr().out
        and said in (tmp_path / "tomi-vanilla-symbolic/report.md").read_text()
    )
    assert (
        run(
            "tomi",
            tmp_path / "labelled.jsonl",
            tmp_path,
            "--model.name=symbolic",
            f"--model.policy={fault}",
            "--tom.baselines=false",
            "--tom.name=fitting",
        )
        == 0
    )
    assert "360 / 360" in (tmp_path / "fitting/report.md").read_text()


def test_no_fault_is_named_where_the_text_explains_all(hitom, tmp_path, capsys):
    assert run("hitom", hitom, tmp_path, "--model.name=symbolic") == 0
    shown = capsys.readouterr().out
    assert "fits best" not in shown and "known faults" not in shown
