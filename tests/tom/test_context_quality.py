"""`eval contexts`: two folders become a report; nothing is paid for twice."""

import json

import pytest

from humanlm.clients.names import scripts
from humanlm.clients.protocol import LLMError
from humanlm.core.commands import main
from humanlm.evaluation.measured import load_measured
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


def test_a_rule_rates_without_a_key(folders, capsys):
    assert main(words(folders)) == 0
    out, shown = folders[2], capsys.readouterr().out
    report = out.read_text()
    assert "3 of 5 records" in report and "unrated as 0" in report and "3 of 5 records" in shown
    assert "generated missing" in report and "generated unreadable" in report
    rows = load_measured(out.with_suffix(".jsonl"))
    assert {row.shown["method"] for row in rows} == {"exact", "none"}
    seen = [row.values["observation accuracy"]["record"] for row in rows]
    whole = [row.values["overall"]["record"] for row in rows]
    assert sorted(x for x in seen if x == x)[1:] == [1, 1] and sum(x < 1 for x in seen) == 1
    assert all(abs(a - (0.3 + 0.7 * b)) < 1e-6 for a, b in zip(whole, seen) if b == b)
    assert sorted(path.name for path in out.parent.iterdir()) == ["quality.jsonl", "quality.md"]


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
    monkeypatch.setattr("humanlm.models.settings.ATTEMPTS", 1)
    command = words(folders, "--judge.model=scripted/judging", "--quality.task=tomi")
    broken.append(1)
    assert main(command) == 1 and len(asked) == 3
    assert (
        "0 of 5 records" in capsys.readouterr().out
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
    assert "0.93" in folders[2].read_text() and "context judge" in folders[2].read_text()
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
