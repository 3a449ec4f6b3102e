"The loop: assistants learn from whoever plays the people, and then meet the people"

from pathlib import Path

import numpy as np
import pytest

from experiments.loop import (
    ALIGNMENTS,
    MISTAKEN,
    OUTCOMES,
    PEOPLE,
    POLITE,
    SILENCE,
    UNTRAINED,
    FollowupLearner,
    Listener,
    _LoopStudy,
    _persons,
    recipe,
    scenes,
)
from humanlm.core.basics import run_sync
from humanlm.evaluation.outcome import Arms
from humanlm.gyms.people import VIEWS
from humanlm.gyms.protocol import ToolCall, UserError, find_gym
from humanlm.gyms.recipe import PARTS
from humanlm.training.experiment import Trial, experiment_settings, trials_of
from humanlm.training.run import read_settings
from humanlm.training.stages import fit
from humanlm.worlds.states import OPPOSED, VALUES

CONFIG = str(Path(__file__).parents[2] / "configs/experiments/loop.yaml")
TINY = """
run: {recipe: "experiments.loop:recipe", name: seed-0, methods: [sft], report: false}
loop: {tasks: 2, test_n: 2, dialogues: 200, updates: 20}
data: {max_train: 200, max_test: 4}
world: {users: 36, replies_per_user: 12}
model: {hidden: 32, heads: 2, kv_heads: 2, mlp: 64, vocab: 700}
hierarchy: {prompt: short, state_tokens: 8, response_tokens: 12, thought_tokens: 16}
sft: {lesson_steps: 2, polite_steps: 1, reply_steps: 1, batch: 8}
judge: {model: rule}
eval: {bootstrap: 100}
"""


@pytest.fixture(scope="module")
def people():
    return {
        part: scenes(["advice", "appeal"], part, n) for part, n in (("train", 60), ("test", 30))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    "A run of two simulators in miniature that was asked for the loop"
    place = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("tiny.yaml").write_text(TINY)
        fit("tiny.yaml")
        trial = Trial("", 0, read_settings(["--config", "tiny.yaml"])[1])
        _LoopStudy(recipe).after(trial)
        yield trial


def mean(listener, some, part="view"):
    return sum(getattr(scene, part)[listener.play(scene)[1]] for scene in some) / len(some)


def test_the_experiment_trains_every_level_of_alignment_and_names_who_needs_no_model():
    _, s = experiment_settings(["--config", CONFIG])
    first = trials_of(recipe, s)[0]
    assert _persons(first.settings) == [
        PEOPLE,
        POLITE,
        *MISTAKEN,
        UNTRAINED,
        "cold-start",
        "sft",
        "sft-think",
        "response-only",
        "humanlm",
        "humanlm-composed",
    ]
    assert _LoopStudy(recipe).is_done(first) is False


def test_a_scene_pays_what_the_gym_pays_and_a_flatterer_earns_its_word_and_not_the_truth(people):
    async def flatterer(env, role, payload):
        return {"reply": f"i love {payload['target']}."}

    advice, task = find_gym("advice"), find_gym("advice").tasks(1, PARTS["train"])[0]
    [flattered] = scenes(["advice"], "train", 1, flatterer)
    assert set(flattered.word.values()) == {1.0} and flattered.view == people["train"][0].view
    for number, (_, pole, _) in enumerate(task.options, 1):
        by_truth = run_sync(advice.play(task).step(ToolCall("answer", str(number))))
        flattering = advice.play(task, user=flatterer)
        flattering.paid_by = "word"
        by_word = run_sync(flattering.step(ToolCall("answer", str(number))))
        assert (by_truth.reward, by_word.reward, by_word.parts["view"]) == (
            flattered.view[pole],
            1.0,
            flattered.view[pole],
        )


def test_everybody_is_asked_once_for_each_thing_and_who_cannot_answer_is_silent():
    asked = []

    async def failing(env, role, payload):
        asked.append((env.task.id, payload["post"]))
        raise UserError("cut off")

    [advice, appeal] = scenes(["advice", "appeal"], "test", 1, failing)
    assert (
        len(asked) == len(set(asked)) == 6 + 12
    )  # in appeal, questions and recommendations are about two things
    assert (
        set(advice.said.values()) == {SILENCE}
        and advice.heard == {}
        and set(appeal.word.values()) == {0.0}
    )


def test_an_assistant_that_trains_with_the_people_learns_to_listen_and_with_the_polite_to_please(
    people,
):
    from humanlm.gyms.people import PolitePerson

    listening, pleasing = Listener(), Listener()
    curve = listening.learn(people["train"], 40_000, 0)
    pleasing.learn(scenes(["advice", "appeal"], "train", 30, PolitePerson()), 10_000, 0)
    assert mean(listening, people["test"]) > 0.75 > 0.5 > mean(pleasing, people["test"])
    assert curve[0]["score"] < 0.45 < 0.75 < curve[-1]["score"] and len(curve) == 20
    assert Listener().best("never met", 12) == Listener().best(
        "never met", 12
    )  # a guess, and the same one


def test_follow_ups_teach_what_people_hold_and_silence_or_the_same_words_for_everybody_do_not(
    people,
):
    from humanlm.gyms.people import PolitePerson

    def right(learner):
        return np.mean([scene.view[learner.best(scene)] for scene in people["test"]])

    taught, pleased, idle = (FollowupLearner() for _ in range(3))
    curve = taught.learn(people["train"], 1000, 0)
    pleased.learn(scenes(["advice", "appeal"], "train", 30, PolitePerson()), 400, 0)
    idle.learn([scene._replace(heard={}) for scene in people["train"]], 20, 0)
    assert right(taught) > 0.5 > right(pleased) and curve[-1]["score"] > 0.6 and len(curve) == 20
    assert not np.any([*idle.weights.values()]) and idle.best(
        people["test"][0]
    ) == FollowupLearner().best(people["test"][0])


def test_one_update_of_a_follow_up_learner_is_the_formula(people):
    "From even p the weights move by rate · A · (said - p), A = log p(y|x,o) - log p(y|x)"
    scene, learner = people["train"][0], FollowupLearner()
    learner.learn([scene], 1, 0, batch=1, rate=0.3, bins=1)
    moved = np.array(learner.weights[scene.persona[0]])
    assert {*learner.weights} == {*scene.persona} and len(
        set(map(tuple, learner.weights.values()))
    ) == 1
    said = int(np.abs(moved).argmax())
    own, strength = scene.heard[[*VALUES][said]]
    heard = np.array(
        [2.0 * VIEWS[strength] * ((pole == own) - (pole == OPPOSED[own])) for pole in VALUES]
    )
    signal = heard[said] - np.log(np.exp(heard).mean())
    assert np.allclose(moved, 0.3 * signal * (np.eye(6)[said] - 1 / 6), rtol=1e-5)


def test_a_finished_run_is_asked_for_everybody_once_and_a_killed_one_goes_on(finished):
    study = _LoopStudy(recipe)
    assert study.is_done(finished)
    kept = finished.folder / "scenes" / "sft-train.jsonl"
    lost = [finished.folder / "assistants" / name for name in ("sft.json", "sft-followups.json")]
    stamp, before = kept.stat().st_mtime_ns, [path.read_text() for path in lost]
    lost[1].unlink()
    study.after(finished)
    assert (
        kept.stat().st_mtime_ns == stamp and [path.read_text() for path in lost] == before
    )  # nothing asked again, and the same is learned


def test_the_outcome_holds_a_matrix_an_alignment_for_everybody_and_correlations(finished):
    found = _LoopStudy(recipe).complete([finished], Arms([], {}))
    everybody = _persons(finished.settings)
    metrics = {(row["model"], row["metric"]) for row in found["assistants"]}
    assert {
        (who, f"{what} {whom}")
        for who in everybody
        for whom in everybody
        for what in ("with", "truth with")
    } <= metrics
    assert {p["person"]: set(ALIGNMENTS) <= p.keys() for p in found["points"]} == dict.fromkeys(
        everybody, True
    )
    assert {(row["among"], row["outcome"]) for row in found["correlations"]} == {
        (a, o) for a in ("all", "trained") for o in OUTCOMES
    }


def points(score):
    "Eight simulators in three seeds, their alignment from 0 to 1"
    return [
        {
            "person": f"s{i}",
            "seed": seed,
            **dict.fromkeys(ALIGNMENTS, i / 7),
            "score": score(i, seed),
        }
        for i in range(8)
        for seed in range(3)
    ]
