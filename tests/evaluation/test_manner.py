"A detector that pays: what it may see, training by it, users of other systems."

import random

import pytest

from experiments.manner import LEAST, Manner
from humanlm.core.basics import DataError, write_jsonl
from humanlm.core.trajectory import Trajectory, Turn
from humanlm.evaluation.detection import DETECTORS
from humanlm.evaluation.dialogues import read_dialogues
from humanlm.evaluation.index import load_trajectories, save_trajectories
from humanlm.worlds.mini import WorldConfig, make_world

PEOPLE = [
    e for e in make_world(WorldConfig(users=36, replies_per_user=12)).examples if e.split == "train"
]
FIVE = {
    "run": {"name": "five", "methods": ["humanlm"], "token_budget": 8000},
    "data": {"max_train": 60, "max_test": 2},
    "world": {"users": 36, "replies_per_user": 12},
    "hierarchy": {"levels": ["belief", "response"], "state_tokens": 12, "response_tokens": 64},
    "model": {"hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64, "vocab": 700},
    "sft": {"lesson_steps": 200, "polite_steps": 0, "batch": 8},
    "rollout": {"num_prompts": 2, "group_size": 8},
    "trainer": {"max_steps": 4, "save_steps": 2},
    "reward": {"extra": "experiments.manner:Manner"},
}


def said(e, text, level="response"):
    return Trajectory(
        f"t-{e.id}", e.id, 0, 0, level, (), [], [], [], fields={level: text}, example_id=e.id
    )


def test_a_detector_sees_no_text_of_the_person_the_discussion_or_later_than_the_reply_it_pays(
    monkeypatch,
):
    seen, form = [], DETECTORS["form"]
    monkeypatch.setitem(DETECTORS, "form", lambda texts: seen.append(list(texts)) or form(texts))
    manner, rng = Manner(PEOPLE, most=10_000), random.Random(0)
    manner.learn([[e.id, f"reply of the model to {e.id}"] for e in PEOPLE])
    for e in rng.sample(PEOPLE[60:], 20):
        seen.clear()
        manner([said(e, "a candidate")])
        [texts] = seen
        known, real, own = (
            {o.id for o in PEOPLE if f"reply of the model to {o.id}" in texts},
            texts[-2],
            texts[-1],
        )
        assert (
            (real, own) == (e.reply, "a candidate")
            and len(texts) == 2 * len(known) + 2
            and len(known) >= LEAST
        )
        for o in PEOPLE:
            assert (o.id in known) == (
                o.user_id != e.user_id and o.context_id != e.context_id and o.order <= e.order
            )


def test_states_and_unreadable_replies_are_paid_nothing_and_teach_nothing():
    manner = Manner(PEOPLE)
    asked = [said(PEOPLE[0], "against it", "stance"), said(PEOPLE[1], "")]
    assert manner(asked) == [0.0, 0.0] and manner.note(asked) == []


def test_a_copy_of_the_real_reply_is_paid_in_full_and_a_shout_is_not():
    manner = Manner(PEOPLE)
    manner.learn([[e.id, e.reply.upper()] for e in PEOPLE[:80]])
    last, other = PEOPLE[-1], PEOPLE[90].reply
    copy, loud, quiet = manner(
        [said(last, last.reply), said(last, other.upper()), said(last, other)]
    )
    assert copy == 1.0 and loud < 0.3 < quiet <= 1.0


@pytest.mark.long
def test_a_run_is_trained_by_it_and_its_checkpoints_keep_what_was_said(tmp_path):
    import yaml

    from humanlm.train import main

    (tmp_path / "five.yaml").write_text(yaml.safe_dump(FIVE))
    assert main(["--config", str(tmp_path / "five.yaml"), "--run.out", str(tmp_path)]) == 0
    found = load_trajectories(tmp_path / "five/trajectories/humanlm")
    assert {t.rewards["extra"] for t in found if t.level != "response"} == {0.0} and all(
        0 <= t.rewards["extra"] <= 1 for t in found
    )
    [*_, kept] = sorted((tmp_path / "five/checkpoints").rglob(Manner.file))
    again = Manner([])
    again.load(kept)
    replies = [
        [t.example_id, t.fields["response"].strip()]
        for t in found
        if t.fields.get("response", "").strip()
    ]
    assert again.replies and all(pair in replies for pair in again.replies)


# ---- users of other systems


def play(folder, stage, words, n=12):
    talk = [
        (
            Turn("policy", f"{i}?"),
            Turn("user", f"{words} {i}"),
            Turn("policy", "ok"),
            Turn("user", f"{words}, thanks"),
        )
        for i in range(n)
    ]
    save_trajectories(
        folder / f"trajectories/{stage}/step-000000-0.parquet",
        [
            Trajectory(f"t{i}/{c}", f"t{i}", i, 0, "", turns, [], [], [])
            for i, turns in enumerate(talk)
            for c in range(2)
        ],
    )
    (folder / "config.yaml").write_text("run: {}\n")
    return str(folder)


def test_users_of_two_runs_stand_apart_and_a_copy_of_a_task_belongs_to_its_task(tmp_path):
    one, two = play(tmp_path / "one", "gyms", "well"), play(tmp_path / "two", "gyms", "no")
    assert list(read_dialogues([one])) == ["gyms"]
    found = read_dialogues([one, two])
    assert list(found) == ["one:gyms", "two:gyms"] and found["one:gyms"][0].turns == (
        "well 0",
        "well, thanks",
    )
    assert len(found["two:gyms"]) == 24 and len({d.cluster for d in found["two:gyms"]}) == 12
    assert {d.ending for d in found["one:gyms"]} == {"thanks"}


def test_a_source_that_a_run_lacks_is_named_with_those_it_has(tmp_path):
    run = play(tmp_path / "one", "gyms", "well")
    with pytest.raises(DataError, match="'gym'. Did you mean 'gyms'"):
        read_dialogues([f"{run}:gym"])


def test_a_run_in_which_no_user_speaks_is_refused(tmp_path):
    run = play(tmp_path / "one", "gyms", "well")
    save_trajectories(
        tmp_path / "one/trajectories/gyms/step-000000-0.parquet",
        [Trajectory("a", "a", 0, 0, "", (Turn("policy", "alone"),), [], [], [])],
    )
    with pytest.raises(DataError, match="no user speaks"):
        read_dialogues([run])


def test_people_in_a_file_are_held_against_the_users_of_a_run(tmp_path, capsys):
    from humanlm.eval import main

    people = write_jsonl(
        tmp_path / "people.jsonl",
        [
            {
                "id": f"d{i}",
                "messages": [
                    {"role": "assistant", "content": "?"},
                    {"role": "user", "content": f"um idk {i}"},
                ],
            }
            for i in range(12)
        ],
    )
    assert (
        main(
            [
                "fidelity",
                f"people={people}",
                play(tmp_path / "one", "gyms", "Well"),
                f"--fidelity.out={tmp_path}/page",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert (
        "one:gyms: told apart by" in shown
        and "share no task" in shown
        and (tmp_path / "page/report.html").is_file()
    )
