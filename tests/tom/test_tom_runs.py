"""What a run, a plan and a comparison say: which setting differs, what abstained, what is whole."""

import json
import random

import pytest
from fantom_rows import fantom_set, right_answer

from humanlm.clients.names import scripts
from humanlm.core.commands import main
from humanlm.tom.contexts import load_items, write_stories
from humanlm.tom.respondent import read_outcomes
from humanlm.tom.sets import benchmarks, find_benchmark

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


def test_a_mismatch_names_the_one_setting_that_differs(hitom, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(scripts, "first", first)
    same = ("--model.name=scripted/first", "--tom.name=mine")
    assert run("hitom", hitom, tmp_path, *same, "--tom.limit=20") == 0
    for more, said in (
        (
            ["--answer.max_tokens=9", "--tom.limit=20"],
            ["answer.max_tokens: 2048 in the run, 9 now"],
        ),
        (["--tom.limit=10"], ["questions.number: 20 in the run, 10 now"]),
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


@pytest.mark.parametrize("mode", ["context", "generate_socialized_context"])
def test_a_larger_limit_goes_on_and_asks_only_what_is_new(mode, hitom, tmp_path, monkeypatch):
    asked = []

    def noted(request):
        asked.append(str(request.messages))
        return first(request)

    monkeypatch.setitem(scripts, "first", noted)
    line = ("--model.name=scripted/first", "--tom.name=mine", f"--tom.mode={mode}")
    assert run("hitom", hitom, tmp_path, *line, "--tom.limit=7") == 0
    before = (tmp_path / "mine/answers.jsonl").read_text()
    assert run("hitom", hitom, tmp_path, *line, "--tom.limit=20") == 0
    after = (tmp_path / "mine/answers.jsonl").read_text()
    assert after.startswith(before) and len(set(asked)) == len(asked) == after.count("\n")
    record = json.loads((tmp_path / "mine/run.json").read_text())
    assert record["conditions"]["questions"]["number"] == len(asked)
    assert record["state"] == "finished"


# ---- abstaining


def test_who_abstains_has_leaked_nothing_and_kept_nothing(meetings, tmp_path, capsys):
    assert run("confaide", meetings, tmp_path, "--model.name=symbolic", "--tom.name=quiet") == 1
    shown, report = capsys.readouterr(), (tmp_path / "quiet/report.md").read_text()
    assert "no answer to any of 6 questions: 0 failed, 6 abstained" in shown.err
    assert "leaks" not in report and "leaks " not in shown.out
    assert "6 questions of tier_4.txt, answered by symbolic" in report
    assert "no answer to any of 6 questions: 0 failed, 6 abstained" in report
    assert json.loads((tmp_path / "quiet/results.json").read_text())["rows"] == []
    assert not any(
        {"omits", "leaks"} & o.scores.keys()
        for o in read_outcomes(tmp_path / "quiet/answers.jsonl")
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


def test_published_names_of_benchmarks_are_taken(tmp_path):
    write_stories("tomi", 2, 3, tmp_path / "tomi.txt")
    assert run("ori_tomi", tmp_path / "tomi.txt", tmp_path) == 0
    assert (tmp_path / "tomi-vanilla-symbolic/report.md").exists()


def test_a_name_near_a_published_one_leads_to_it(hitom, tmp_path, capsys):
    assert run("hitom", hitom, tmp_path, "--tom.mode=socialised_context") == 2
    assert "Did you mean 'socialized_context'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "published, line",
    [
        ("vanilla_no_reasoning", ["--tom.mode=vanilla", "--answer.reasoning=false"]),
        ("socialized_context_no_json", ["--tom.mode=context", "--answer.rendering=text"]),
        ("generate_socialized_context", ["--tom.mode=context"]),
    ],
)
def test_published_names_of_ways_with_settings_ask_what_ours_ask(
    published, line, hitom, tmp_path, monkeypatch, capsys
):
    seen = []

    def noted(request):
        seen.append((str(request.messages), str(request.schema)))
        return first(request)

    monkeypatch.setitem(scripts, "first", noted)
    common = ["--model.name=scripted/first"]
    assert run("hitom", hitom, tmp_path, *common, f"--tom.mode={published}", "--dry-run") == 0
    [way] = [text for text in capsys.readouterr().out.splitlines() if text.startswith("way")]
    assert published in way and line[0].partition("=")[2] in way
    assert all(flag.partition("=")[0] in way for flag in line[1:])
    seen.clear()
    assert run("hitom", hitom, tmp_path, *common, f"--tom.mode={published}") == 0
    theirs = seen[:]
    seen.clear()
    assert run("hitom", hitom, tmp_path, *common, *line) == 0
    assert set(theirs) <= set(seen)
    items = load_items(find_benchmark("hitom"), hitom).items
    firsts = published.startswith("generate")
    assert len(theirs) == len({item.set_id for item in items} if firsts else items)
    assert len(list(tmp_path.glob("hitom-*"))) == 2, "each has a folder of its own"


@pytest.mark.parametrize(
    "model, said",
    [
        (
            "symbolic",
            "warning   no answer to any of 6 questions: 0 failed, 6 abstained. Most often: ",
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
