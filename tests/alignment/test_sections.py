"The report of a run says what its numbers rest on, and holds what others wrote as text."

import math
import re
import shutil
from pathlib import Path

import pytest
from pages import read

from humanlm.alignment.evaluation import Evaluation, save_evaluations
from humanlm.alignment.sections import SECTIONS, statement
from humanlm.core.basics import atomic_write, to_json, write_jsonl
from humanlm.core.html import Html, figure_svg, markdown_html
from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score, Trajectory, save_trajectories
from humanlm.evaluation.figures import results_bars
from humanlm.evaluation.measured import ALL, Importance, PairedDifference, Result
from humanlm.evaluation.report import _results_html, paired_html, write_report

PIECES = (
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "results.json",
    "evaluations",
    "examples.jsonl",
    "trajectories",
    "data.md",
)
LEVELS = ("stance", "emotion", "goal")
MODELS = {
    "base": 0.0,
    "cold-start": 0.2,
    "response-only": 0.3,
    "humanlm": 0.6,
    "chance": 0.1,
    "ceiling": 0.8,
}
HOSTILE = (
    "</style></script><script>alert(1)</script></td></pre>"
    """<img src=//x.org onerror="z"><stance>' " & $x$ \u202e"""
)


def result_rows() -> list[Result]:
    "Invented means"
    levels = {
        "state_alignment": (ALL, *LEVELS),
        "response_alignment": (ALL,),
        "reply_state_alignment": (ALL, *LEVELS),
    }
    return [
        Result(model, metric, level, 20, mean, max(0, mean - 0.05), mean + 0.05)
        for model, mean in MODELS.items()
        for metric, names in levels.items()
        for level in names
    ]


def log_lines() -> list[dict]:
    "Invented curves"
    cold = [{"stage": "cold-start", "step": step, "loss": 2 / step} for step in range(1, 9)]
    numbers = {
        "reward": 0.3,
        "reward/stance": 0.3,
        "reward/response": None,
        "parse/ok": 1.0,
        "judge/no_score": 0.0,
        "tokens/generated": 100.0,
        "completions/mean_length": 9.0,
    }
    return cold + [{"stage": "humanlm", "step": step} | numbers for step in range(1, 9)]


def make_run(folder: Path, text: str = "invented") -> Path:
    "Write a whole run folder, with `text` wherever a run has text of others"
    atomic_write(folder / "config.yaml", to_json(CONFIG | {"run": {"name": "r", "note": text}}))
    atomic_write(folder / "run.json", to_json(record(text)))
    atomic_write(folder / "data.md", f"# {text}\n\n| a | b |\n|--|--|\n| {text} | 2 |\n")
    atomic_write(
        folder / "results.json",
        to_json({"rows": result_rows(), "paired": pairs(), "importance": matter(text)}),
    )
    write_jsonl(folder / "metrics.jsonl", log_lines())
    write_jsonl(folder / "examples.jsonl", examples(text))
    for model in ("base", "cold-start", "humanlm"):
        save_evaluations(folder / "evaluations" / f"{model}.jsonl", evaluations(text))
    for step in (0, 4):
        save_trajectories(
            folder / "trajectories/humanlm" / f"step-{step:06d}-0.parquet", samples(text, step)
        )
    return folder


CONFIG = {
    "data": {"source": "miniworld"},
    "judge": {"model": "oracle"},
    "model": {"name": "tiny"},
    "reward": {"alignment": 1.0, "format": 0.0},
}


def record(text: str) -> dict:
    calls = {
        "caller": text,
        "model": text,
        "calls": 2,
        "hits": 0,
        "tokens_in": 5,
        "tokens_out": 6,
        "cost": None,
    }
    return {
        "state": "finished",
        "name": text,
        "seed": 3,
        "data_fingerprint": "feedfacefeedface",
        "commit": text,
        "versions": {"humanlm": text},
        "machine": {"system": text},
        "seconds": {"data": 1.0, text: 2.0},
        "ledger": [calls],
    }


def pairs() -> list[PairedDifference]:
    return [
        PairedDifference("state_alignment", level, "humanlm", "cold-start", 20, 0.4, 0.3, 0.5)
        for level in (ALL, "stance")
    ]


def examples(text: str) -> list[Example]:
    talk = (Message("m", "user", text, text),)
    persona, states = Persona(text, text), {"stance": text}
    return [
        Example(f"e{i}", text, "test", text, f"c{i}", persona, talk, text, states=states)
        for i in range(6)
    ]


def evaluations(text: str) -> list[Evaluation]:
    def score(value, status="scored"):
        return Score("0", value, status, text, (text,), (0.5,), 0.1, text)

    def scores(i):
        return {
            "state_alignment": {"stance": score(i / 6)},
            "response_alignment": {"response": score(math.nan, "judge failed")},
            "reply_state_alignment": {"stance": score(0.0, "bad format")},
        }

    return [
        Evaluation(f"e{i}", f"c{i}", {"stance": text, "response": text}, scores(i))
        for i in range(6)
    ]


def samples(text: str, step: int) -> list[Trajectory]:
    return [
        Trajectory(
            f"t{step}{i}",
            text,
            0,
            step,
            "stance",
            (),
            [1],
            [2],
            [True],
            text=text,
            errors=(text,),
            scores={"stance": Score("0", i / 3, "scored", text)},
            advantage=i - 1.0,
        )
        for i in range(3)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "r"), SECTIONS).read_text(
        "utf-8"
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> str:
    return write_report(
        make_run(tmp_path_factory.mktemp("runs") / "h", HOSTILE), SECTIONS
    ).read_text("utf-8")


def matter(text: str) -> list[Importance]:
    return [
        Importance("humanlm", metric, level, 20, r, r - 0.2, r + 0.2, r, r - 0.2, r + 0.2)
        for metric in ("reply_state_alignment", "state_alignment")
        for level, r in {"stance": 0.6, text: math.nan}.items()
    ]


# ---- what the page says


@pytest.mark.parametrize(
    "config, said, unsaid",
    [
        (
            {"judge": {"model": "rule"}, "test_judge": {"model": "oracle"}},
            "Rewards in training came from another judge: rule",
            "have the same judge",
        ),
        (
            {"judge": {"model": "rule"}, "test_judge": {"model": "rule"}},
            "Training and test have the same judge",
            "another judge",
        ),
        ({"judge": {"model": "rule"}}, "Training and test have the same judge", "another judge"),
        (
            {"judge": {"model": "openai/x"}, "test_judge": {"model": "anthropic/y"}},
            "Judge: the model anthropic/y",
            "have the same judge",
        ),
    ],
)
def test_it_says_which_judge_the_numbers_come_from(config, said, unsaid):
    text = " ".join(statement(config))
    assert said in text and unsaid not in text


def test_states_that_matter_are_shown_with_their_points(page):
    section = page[page.index('id="importance"') :]
    for part in (
        "Pearson",
        "Spearman",
        "+0.60 *",
        "* Fewer than 30 rows",
        "Do they carry into the reply".lower(),
    ):
        assert part in section or part in section.lower()


def test_it_opens_with_what_the_run_was(page):
    said = (
        page.index("Texts that could be read: "),
        page.index("Synthetic world"),
        page.index("Oracle judge"),
        page.index("Toy model"),
        page.index("<h2"),
    )
    assert list(said) == sorted(said) and "Missing from this run" not in page


@pytest.mark.parametrize(
    "text",
    [
        "0.60</b><br><small>0.55 to 0.65",
        "humanlm − cold-start",
        "no score · judge failed",
        "feedfacefeedface",
    ],
)
def test_it_holds_the_numbers_and_where_they_come_from(page, text):
    assert text in page


def test_examples_go_from_best_to_worst(page):
    means = re.findall(r"mean score of humanlm (\d\.\d\d)", page)
    assert (
        means == sorted(means, reverse=True)
        and means[0] == "0.83"
        and means[-1] == "0.00"
        and len(means) == 4
    )


def test_it_asks_for_nothing_and_runs_nothing(page):
    assert not re.findall(r'(?:href|src)="(?!#)|url\((?!#)|@import|https?:|<script', page)
    assert "default-src 'none'" in page.replace("&#x27;", "'") and len(page) < 1_000_000


def test_it_is_well_formed(page):
    assert {"svg", "table", "details", "h2"} <= read(page, figures=True).tags


# ---- hostile text


def test_hostile_text_stays_text(page, hostile):
    known, found = read(page, figures=True), read(hostile, figures=True)
    assert found.tags <= known.tags and found.attributes <= known.attributes
    assert not found.tags & {"script", "img", "stance"}
    assert "<script>alert(1)</script>" in found.text


def test_hostile_names_stay_text():
    rows = [Result(HOSTILE, HOSTILE, HOSTILE, 2, 0.5, 0.4, 0.6)]
    pages = (
        _results_html(rows, {(HOSTILE, HOSTILE): HOSTILE}),
        paired_html([PairedDifference(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 2, 0.1, 0.0, 0.2)]),
        markdown_html(HOSTILE),
        figure_svg(results_bars(rows, HOSTILE), HOSTILE),
    )
    found = read("".join(pages), figures=True)
    assert not found.tags & {"script", "img", "stance"} and not found.attributes & {
        "onerror",
        "src",
    }


# ---- what is missing or broken


@pytest.fixture
def undrawn(monkeypatch):
    "Pages whose figures are made and not drawn, which takes longer than the rest"
    monkeypatch.setattr("humanlm.core.html.figure_svg", lambda figure, alt: Html("<svg></svg>"))


@pytest.mark.parametrize("name", ["results.json", "evaluations", "data.md"])
def test_a_missing_piece_is_named(tmp_path, undrawn, name):
    folder = make_run(tmp_path / "r")
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    page = write_report(folder, SECTIONS).read_text("utf-8")
    assert ("No data card." if name == "data.md" else f"{name}: not there") in page and read(
        page, figures=True
    ).tags


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "results.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe{\n", b"[1]\n"])
def test_a_broken_piece_is_named(tmp_path, undrawn, name, content):
    folder = make_run(tmp_path / "r")
    (folder / name).write_bytes(content)
    page = write_report(folder, SECTIONS).read_text("utf-8")
    fits = (name == "data.md" and b"\xff" not in content) or (
        name == "run.json" and content.startswith(b'{"')
    )
    assert fits or f"{name}: not readable" in page


@pytest.mark.parametrize(
    "name", ["evaluations/humanlm.jsonl", "trajectories/humanlm/step-000000-0.parquet"]
)
def test_a_broken_file_in_a_folder_is_named(tmp_path, undrawn, name):
    folder = make_run(tmp_path / "r")
    (folder / name).write_text("{")
    page = write_report(folder, SECTIONS).read_text("utf-8")
    assert "not readable" in page and Path(name).name in page


def test_an_empty_folder_gets_a_report(tmp_path):
    page = write_report(tmp_path, SECTIONS).read_text("utf-8")
    assert (
        page.count(": not there") == len(PIECES) - 1
        and "No data card." in page
        and "Data: unknown" in page
        and read(page, figures=True).tags
    )


def test_a_run_with_only_a_cold_start(tmp_path):
    folder = make_run(tmp_path / "r")
    shutil.rmtree(folder / "trajectories")
    write_jsonl(
        folder / "metrics.jsonl", [line for line in log_lines() if line["stage"] == "cold-start"]
    )
    rows = [r for r in result_rows() if r.model in ("base", "cold-start")]
    atomic_write(folder / "results.json", to_json({"rows": rows, "paired": []}))
    page = write_report(folder, SECTIONS).read_text("utf-8")
    said = (
        "No training samples",
        "No paired differences",
        "loss, learning from text",
    )
    assert [text for text in said if text not in page] == []


def test_an_unfinished_run_says_so(tmp_path):
    folder = make_run(tmp_path / "r")
    atomic_write(folder / "run.json", to_json({"state": "started"}))
    assert "not finished (state: started)" in write_report(folder, SECTIONS).read_text("utf-8")


@pytest.mark.parametrize("reads", [None, [], ["stance"]])
def test_the_page_says_once_what_a_judge_cannot_read_and_shows_no_copy(tmp_path, reads):
    run = make_run(tmp_path / "run")
    rows = [r for r in result_rows() if reads != [] or r.metric != "reply_state_alignment"]
    test = {"model": "embed"} | ({} if reads is None else {"reads": reads})
    atomic_write(run / "results.json", to_json({"rows": rows, "judges": {"test": test}}))
    page = write_report(run, SECTIONS).read_text("utf-8")
    assert page.count("is not measured: embed") == (reads == [])
    assert ("Reply state alignment</h3>" in page) == (reads != [])


def test_shares_count_what_could_not_be_read(tmp_path):
    run = make_run(tmp_path / "run")
    lost = Score("0", math.nan, "unsaid", flags=("bad format",))
    fine = Score("0", math.nan, "unsaid")
    rows = [
        Evaluation(f"e{i}", "c", {"stance": ""}, {"state_alignment": {"stance": score}})
        for i, score in enumerate([lost, fine, Score("0", 0.5, "scored"), Score("0", 0.0, "empty")])
    ]
    for model in ("base", "cold-start", "humanlm"):
        save_evaluations(run / "evaluations" / f"{model}.jsonl", rows)
    page = write_report(run, SECTIONS).read_text("utf-8")
    assert "base 50%" in page
