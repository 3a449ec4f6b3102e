"""`eval contexts`: two folders become the published table; nothing is paid for twice."""

import csv
import json

import pytest

from humanlm.clients.names import scripts
from humanlm.clients.protocol import LLMError
from humanlm.core.commands import main
from humanlm.social.contexts import read_context
from humanlm.social.quality import omniscient


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
