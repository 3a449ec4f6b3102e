"""`eval contexts`: two folders become the published table; nothing is paid for twice."""

import csv
import json
import random

import pytest
from fantom_rows import fantom_set

from humanlm.clients.names import scripts
from humanlm.clients.protocol import LLMError
from humanlm.core.commands import main
from humanlm.social.contexts import read_context
from humanlm.social.quality import omniscient
from humanlm.tom.contexts import load_items, write_stories
from humanlm.tom.sets import benchmarks


def spoil(path, change):
    row = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            row
            | {"socialized_context": change(read_context(row["socialized_context"])).to_published()}
        )
    )


@pytest.fixture
def folders(tmp_path, capsys):
    "Exact contexts of five stories, and the same with one spoilt, one broken and one missing"
    for name in ("wanted", "made"):
        assert (
            main(
                [
                    "data",
                    "stories",
                    "tomi",
                    "--stories.n=5",
                    "--stories.seed=4",
                    f"--stories.out={tmp_path}/{name}",
                ]
            )
            == 0
        )
    made = sorted((tmp_path / "made/contexts").glob("*.json"))
    spoil(made[1], omniscient)
    made[3].write_text("{")
    made[4].unlink()
    capsys.readouterr()
    return tmp_path / "wanted/contexts", tmp_path / "made/contexts", tmp_path / "out/quality.md"


def words(folders, *more):
    return [
        "eval",
        "contexts",
        f"--quality.gt={folders[0]}",
        f"--quality.gen={folders[1]}",
        f"--quality.out={folders[2]}",
        *more,
    ]


def test_a_rule_rates_without_a_key_in_the_published_columns(folders, capsys):
    assert main(words(folders)) == 0
    out, shown = folders[2], capsys.readouterr().out
    report = out.read_text()
    assert (
        "| File | Structural | Observation Accuracy | Overall |" in report
        and "**Mean**" in report
        and "**Final Score**" in report
        and "Coverage 60% of 5" in report
    )
    assert (
        "Coverage 60% of 5" in shown
        and "generated missing" in shown
        and "generated unreadable" in shown
    )
    rows = {row["file_id"]: row for row in csv.DictReader(out.with_suffix(".csv").open())}
    assert len(rows) == 5 and {row["method"] for row in rows.values()} == {"exact", "none"}
    seen = {
        name: float(row["observation_accuracy"])
        for name, row in rows.items()
        if row["observation_accuracy"]
    }
    whole = {
        name: float(row["overall_score"]) for name, row in rows.items() if row["overall_score"]
    }
    assert sorted(seen.values())[1:] == [1, 1] and min(seen.values()) < 1
    assert all(abs(whole[name] - (0.3 + 0.7 * seen[name])) < 1e-3 for name in seen)
    assert sorted(path.name for path in out.parent.iterdir()) == ["quality.csv", "quality.md"]


@pytest.mark.parametrize(
    "family, file, texts", [("tomi", "tomi.txt", 24), ("hitom", "hitom.jsonl", 4)]
)
def test_contexts_have_the_names_of_published_results(family, file, texts, tmp_path, capsys):
    write_stories(family, 4, 4, tmp_path / file)
    line = [family, f"--tom.file={tmp_path / file}", f"--tom.out={tmp_path}", "--tom.name=made"]
    assert main(["data", "contexts", *line]) == 0
    items = {item.id: item for item in load_items(benchmarks[family], str(tmp_path / file))}
    made = tmp_path / "made/files"
    assert len(list(made.iterdir())) == texts
    for path in made.iterdir():
        row, item = json.loads(path.read_text()), items[path.stem]
        assert (row["story"], row["question"]) == (item.source, item.question)
    assert main(words([made, made, tmp_path / "q.md"])) == 0
    assert f"Coverage 100% of {texts}" in (tmp_path / "q.md").read_text()


def test_a_model_rates_every_record_and_answers_are_paid_once(folders, capsys, monkeypatch):
    asked, broken = [], []

    def judge(request):
        asked.append(request.messages[-1]["content"])
        return (
            LLMError("malformed", "nonsense")
            if broken
            else json.dumps({"reasoning": "fine", "score": 0.9})
        )

    monkeypatch.setitem(scripts, "judging", judge)
    command = words(
        folders, "--judge.model=scripted/judging", "--judge.attempts=1", "--quality.task=tomi"
    )
    broken.append(1)
    assert main(command) == 1 and len(asked) == 3
    assert (
        "no record of" in capsys.readouterr().err
        and "no judgement: malformed: nonsense" in folders[2].read_text()
    )
    broken.clear()
    asked.clear()
    assert (
        main(command) == 0
        and len(asked) == 3
        and all("## Reference record" in text for text in asked)
    )
    assert main(command) == 0 and len(asked) == 3
    assert "0.930" in folders[2].read_text() and "context judge" in folders[2].read_text()
    assert (
        folders[2].with_suffix(".charges.jsonl").exists()
        and folders[2].with_suffix(".answers").is_dir()
    )


@pytest.mark.parametrize(
    "model, said", [("rule", "judge: nobody is asked"), ("openai/gpt-5-mini", "at most 5 calls")]
)
def test_a_dry_run_says_what_it_would_ask_and_writes_nothing(
    model, said, folders, capsys, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(words(folders, f"--judge.model={model}", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert said in shown and "5 records of" in shown and not folders[2].parent.exists()


def test_conversations_outside_the_grammar_are_compared_with_the_words_of_their_reference(
    tmp_path, capsys
):
    talk = (
        "Ana: I sold the boat.\nBo: Good.\nAna: I have to go, sorry.\nBo: Bye!\nCem: Hello "
        "Bo.\nBo: The boat is gone.\nCem: I see."
    )
    rows = [
        fantom_set(n, random.Random(n)) | {"short_context": talk.replace("boat", thing)}
        for n, thing in enumerate(("boat", "sail"))
    ]
    (tmp_path / "fantom.json").write_text(json.dumps(rows))
    assert (
        main(
            [
                "data",
                "contexts",
                "fantom",
                f"--tom.file={tmp_path}/fantom.json",
                f"--tom.out={tmp_path}",
                "--tom.name=talks",
                "--parser.name=dialogue",
            ]
        )
        == 0
    )
    wanted, made = tmp_path / "talks/files", tmp_path / "made"
    made.mkdir()
    for n, path in enumerate(sorted(wanted.glob("*.json"))):
        (made / path.name).write_text(path.read_text())
        if n:
            spoil(made / path.name, omniscient)
    capsys.readouterr()
    assert main(words((wanted, made, tmp_path / "fantom.md"))) == 0
    found = [
        (row["method"], float(row["observation_accuracy"]))
        for row in csv.DictReader((tmp_path / "fantom.csv").open())
    ]
    assert found[0] == ("words", 1.0) and found[1][0] == "words" and found[1][1] < 1


@pytest.mark.parametrize(
    "more, said",
    [
        (["--judge.model=gtp/5"], "no model 'gtp/5'"),
        (["--quality.gt=nowhere"], "No *.json in nowhere"),
    ],
)
def test_wrong_settings_are_one_sentence(more, said, folders, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words(folders, *more)) == 2
    assert said in capsys.readouterr().err and not folders[2].parent.exists()
