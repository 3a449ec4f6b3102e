"Sources whose likeness is known, and files that are read by their columns."

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from humanlm.core.basics import read_jsonl, write_jsonl
from humanlm.core.stats import Bootstrap
from humanlm.eval import main
from humanlm.evaluation.detection import (
    _auc,
    _folds,
    _masked,
    _pairs,
    ceiling,
    detect,
)
from humanlm.evaluation.dialogues import (
    Conversation,
    clusters_of,
    read_dialogues,
    reply_dialogues,
)
from humanlm.evaluation.fidelity import _findings, _report_html, measure
from humanlm.evaluation.fingerprint import (
    _turn_readings,
    _whole_readings,
    diversity,
    feature_gaps,
)
from humanlm.worlds.mini import WorldConfig, make_world

DATA = Path(os.environ.get("HUMANLM_DATA", "missing")) / "user_dialogues"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="HUMANLM_DATA names no folder with user_dialogues"
)
SMALL = {"splits": 6, "resamples": 100}


def crowd(name, n=24, turns=4, seed=0, change=lambda text: text):
    "People with a liking for some words each"
    rng, found = random.Random(seed), []
    for i in range(n):
        words = [
            f"{a}{b}" for a in rng.sample("bcdfgklmnprst", 6) for b in ("a", "e", "o", "ick", "ump")
        ]
        texts = tuple(
            change(f"Well, {' '.join(rng.choices(words, k=rng.randint(2, 9)))}{rng.choice('.?!')}")
            for _ in range(turns)
        )
        found.append(
            Conversation(
                name, f"{name}{seed}-{i}", texts, ("",) * turns, f"p{seed}-{i}", ending="silence"
            )
        )
    return found


def test_two_halves_of_one_source_are_not_told_apart():
    people, others = crowd("people", seed=1), crowd("others", seed=2)
    top = ceiling(people, splits=10)
    for d in detect(people, others, resamples=200):
        assert top[d.detector].low <= 0.5 <= top[d.detector].high
        assert d.turn.low <= top[d.detector].high and d.turn.value < 0.65


def test_lower_cased_copies_are_told_apart_and_the_feature_is_named():
    people, careless = crowd("people", seed=1), crowd("careless", seed=2, change=str.lower)
    found = {d.detector: d for d in detect(people, careless, resamples=200)}
    assert all(d.turn.low > 0.9 for d in found.values())
    assert found["form"].tells[0][0] == "begins in lower case"
    gaps = {gap.feature: gap for gap in feature_gaps(people, careless, 200)}
    assert (
        gaps["begins in lower case"].differs
        and gaps["begins in lower case"].difference.value == 1
        and not gaps["question"].differs
    )


def test_no_person_stands_on_both_sides_of_a_fold():
    found = [d._replace(person=f"p{i % 7}") for i, d in enumerate(crowd("a", 28))]
    sides = np.arange(28) % 2  # the same persons in both sources
    part = _folds(clusters_of(found), sides, 0)
    assert all(
        len({int(p) for p, d in zip(part, found) if d.person == person}) == 1
        for person in {d.person for d in found}
    )


def test_the_area_is_that_of_scikit_learn_and_counts_no_pairs_across_strata():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    scores, fake, strata, index = (
        np.round(rng.random(60), 1),
        rng.integers(0, 2, 60),
        rng.integers(0, 3, 60),
        rng.integers(0, 20, 60),
    )
    draws = Bootstrap(index, 0, 50)
    whole = _auc(_pairs(scores, fake, draws.index, np.zeros(60), len(draws.names)), draws)
    assert whole.value == pytest.approx(roc_auc_score(fake, scores))
    won, pairs = 0.0, 0
    for s in range(3):
        n = (fake[strata == s] == 1).sum() * (fake[strata == s] == 0).sum()
        won, pairs = won + n * roc_auc_score(fake[strata == s], scores[strata == s]), pairs + n
    assert _auc(
        _pairs(scores, fake, draws.index, strata, len(draws.names)), draws
    ).value == pytest.approx(won / pairs)


def test_names_numbers_and_addresses_are_hidden():
    assert (
        _masked("Hi, I am Sophia Martin, booking K67C4W, see www.x.org. Please call Dan.")
        == "Hi, I am Xx Xx, booking K00C0W, see url. Please call Xx."
    )
    assert _masked("ann_07 7_ __1 _1 a1_b x.y+z@post.example, an_n") == "Xx 0_ Xx _0 Xx url, an_n"


@pytest.mark.parametrize(
    "text", ["0a1b2c" * 2000, "1" * 20_000, "ab_" * 7000, "a.+" * 7000, "a@" * 9000]
)
def test_hiding_takes_time_that_grows_with_the_text(text):
    start = time.perf_counter()
    _masked(text)
    assert time.perf_counter() - start < 1


def test_one_voice_is_noticed_by_the_crowd_measures():
    people = crowd("people", 30, 6)
    voice = [d._replace(turns=people[0].turns) for d in people]
    found = diversity({"people": people, "voice": voice}, 8)
    assert found["near duplicates"]["voice"].value == 1 > found["near duplicates"]["people"].value
    assert (
        found["likeness between persons"]["voice"].low
        > found["likeness between persons"]["people"].high
    )


def test_a_page_says_that_tasks_differ_and_escapes_what_people_wrote():
    hostile = "<script>alert(1)</script>"
    found = measure(
        {
            "people": crowd("people"),
            hostile: crowd(hostile, seed=3, change=lambda text: f"{text} {hostile}"),
        },
        **SMALL,
    )
    html = _report_html(found)
    assert "<script" not in html and "&lt;script&gt;" in html
    assert any("share no task" in line for line in _findings(found))
    assert not any(source in html for source in ("http:", "https:", "src="))


def test_the_command_reads_files_by_column_names_and_writes_a_page(tmp_path, capsys):
    for name, seed in (("ann", 1), ("bot", 2)):
        rows = [
            {"nick": d.person, "log": d.id, "reply": text}
            for d in crowd(name, 12, 3, seed)
            for text in d.turns
        ]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    write_jsonl(tmp_path / "odd.jsonl", [{"nick": "ann", "said": "ok"}])
    ann, bot, odd = (str(tmp_path / f"{name}.jsonl") for name in ("ann", "bot", "odd"))
    out = f"--fidelity.out={tmp_path / 'page'}"
    assert main(["fidelity", ann, bot, "--dry-run", out]) == 0 and not (tmp_path / "page").exists()
    assert main(["fidelity", ann, f"simulated={bot}", out]) == 0
    assert "simulated" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "page").iterdir()} == {"report.html", "fidelity.json"}
    assert main(["fidelity", odd, out]) == 2
    assert "Its columns: nick, said" in capsys.readouterr().err


def test_replies_of_a_run_stand_beside_those_of_people():
    examples = make_world(WorldConfig(users=12, replies_per_user=4)).examples[:6]
    found = reply_dialogues(
        examples,
        {"bot": [(e.id, "ok") for e in examples[:4]] + [("gone", "ok"), (examples[4].id, " ")]},
    )
    assert [d.source for d in found] == ["real people"] * 4 + ["bot"] * 4 and found[0].turns == (
        examples[0].reply,
    )
    assert {d.person for d in found} == {e.user_id for e in examples[:4]}


@needs_data
def test_published_shares_of_real_turns_are_found_again():
    "Turns of at most five words, and in lower case, as the folder's own notes count them"
    found = {
        name: _turn_readings(read_dialogues([str(DATA / f"{name}.jsonl")], 0)[name])
        for name in ("human_tutoring", "human_writing", "llm_user_airline")
    }
    shares = {
        name: [
            round(100 * r.values[:, r.names.index(f)].mean())
            for f in ("five words or fewer", "begins in lower case")
        ]
        for name, r in found.items()
    }
    assert (
        abs(
            np.array([shares["human_tutoring"], shares["human_writing"]]) - [[38, 39], [8, 20]]
        ).max()
        <= 1
    )
    assert shares["llm_user_airline"][1] == 0
    ends = _whole_readings(
        read_dialogues([str(DATA / "llm_user_airline.jsonl")], 0)["llm_user_airline"]
    )
    assert ends.values[:, ends.names.index("ends in silence")].mean() == pytest.approx(8 / 108)
    assert len(read_jsonl(DATA / "llm_user_airline.jsonl")) == 108
