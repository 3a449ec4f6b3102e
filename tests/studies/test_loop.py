"The loop: assistants are paid by the word of whoever plays the person, and then meet everybody"
import math
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError, run_sync
from humanlm.core.runs import save_config
from humanlm.evaluation.measured import load_measured
from humanlm.gyms.evaluation import load_episodes
from humanlm.gyms.protocol import ToolCall, find_gym
from humanlm.studies.loop import MISTAKEN, LoopStudy, Mistaken, alignment, correlations, recipe
from humanlm.training.run import read_settings
from humanlm.training.stages import fit
from humanlm.training.trials import experiment_settings, trials_of

ROOT = Path(__file__).parents[2]
TINY = """
run: {recipe: "humanlm.studies.loop:recipe", name: tiny, report: false}
loop: {person: mistaken-50, persons: [people, polite, mistaken-50], simulators: sims}
gyms: {train: [advice, appeal], tasks: 8, test_n: 3, max_turns: 2, turn_tokens: 6, max_tokens: 90, system: false}
model: {hidden: 32, heads: 2, kv_heads: 2, mlp: 64}
sft: {lesson_steps: 4, batch: 16}
rollout: {num_prompts: 2, group_size: 4}
trainer: {max_steps: 2, save_steps: 2}
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    "A run in miniature"
    place = tmp_path_factory.mktemp("loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("tiny.yaml").write_text(TINY)
        yield place, place / fit("tiny.yaml")


def test_every_variant_of_the_experiment_trains_with_another_person_from_the_same_cold_start():
    _, s = experiment_settings(["--config", str(ROOT / "configs/experiments/loop.yaml")])
    trials = trials_of(recipe, s)
    first = [trial for trial in trials if trial.seed == s.experiment.seeds[0]]
    study = LoopStudy(recipe)
    assert [trial.settings.loop.person for trial in first] == s.loop.persons == list(s.variants)
    assert len({trial.settings.user.model for trial in first}) == len(first)
    assert len({study.shared(trial.settings)["cold-start"] for trial in first}) == 1
    assert "seed-2/models/humanlm" in next(t.settings.user.model for t in trials if t.seed == 2 and t.variant == "humanlm")


def test_simulators_of_the_experiment_are_those_that_its_first_half_trains():
    _, s = experiment_settings(["--config", str(ROOT / "configs/experiments/loop.yaml")])
    _, first = experiment_settings(["--config", str(ROOT / "configs/experiments/loop-simulators.yaml")])
    assert str(Path(first.run.out) / first.run.name) == s.loop.simulators and first.experiment.seeds == s.experiment.seeds
    assert {*first.run.methods, "cold-start", "untrained", "people", "polite", *MISTAKEN} == {*s.loop.persons}


def test_everybody_is_met_on_the_same_tasks_and_truth_and_word_are_one_with_the_people(played):
    _, folder = played
    for model, persons in (("cold-start", ["people", "mistaken-50"]), ("gyms", ["people", "polite", "mistaken-50"])):
        units = load_measured(folder / "measured" / f"{model}.jsonl")
        assert len(units) == 6 and {name for name in units[0].values if name.startswith("with ")} == {f"with {who}" for who in persons}
        for unit in units:
            [gym] = unit.values["score"]
            assert unit.values["with people"] == unit.values["truth with people"] == unit.values["score"]
            assert unit.values["gap"][gym] == unit.values["promised"][gym] - unit.values["score"][gym]


def test_an_evaluation_that_was_killed_goes_on_with_whoever_is_left(played):
    place, folder = played
    kept = folder / "episodes" / "gyms-people.jsonl"
    before, own = kept.stat().st_mtime_ns, folder / "episodes" / "gyms-polite.jsonl"
    own.unlink()
    (folder / "measured" / "gyms.jsonl").unlink()
    record = folder / "run.json"
    record.write_text(record.read_text().replace('"finished"', '"started"'))
    fit("tiny.yaml")
    assert kept.stat().st_mtime_ns == before and len(load_episodes(own)) == 6


def test_a_simulator_that_was_not_trained_is_named_with_the_command_that_trains_it(played):
    _, s = read_settings(["--config", "tiny.yaml"])
    with pytest.raises(ConfigError, match="no model humanlm. Train the simulators first: python -m humanlm.experiment"):
        recipe.load(s.changed(loop={"persons": ["people", "mistaken-50", "humanlm"]}))


def test_a_recommendation_is_paid_by_what_is_said_of_it_and_the_truth_stands_beside():
    gym = find_gym("advice")

    async def flatterer(env, role, payload): return {"reply": f"i love {payload['target']}."}
    task = gym.tasks(1, 0)[0]
    for number in range(1, 7):
        said = run_sync(gym.play(task, type(gym.config)(paid_by="word"), flatterer).step(ToolCall("answer", str(number))))
        true = run_sync(gym.play(task).step(ToolCall("answer", str(number))))
        assert (said.reward, said.parts["view"]) == (1.0, true.reward)


def test_the_mistaken_give_fewer_states_the_larger_their_share_and_say_the_same_when_asked_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, s = read_settings(["--config", str(ROOT / "configs/experiments/loop-simulators.yaml"), "--data.max_test", "40", "--world.users", "60"])
    save_config(tmp_path / "sims/seed-0/config.yaml", s)
    loop = experiment_settings(["--config", str(ROOT / "configs/experiments/loop.yaml"), "--loop.simulators", "sims", "--experiment.seeds", "[0]"])[1]
    trial = trials_of(recipe, loop)[0]
    levels = [alignment(trial, person) for person in MISTAKEN]
    assert levels[0]["states"] > levels[1]["states"] > levels[2]["states"] and levels[0]["replies"] > levels[2]["replies"]
    task = find_gym("appeal").tasks(1, 0)[0]
    payload = {"source": task.domain, "target": task.target, "pole": "thrift", "post": "p"}
    assert len({run_sync(Mistaken(0.5)(find_gym("appeal").play(task), "person", payload))["reply"] for _ in range(5)}) == 1


def points(score):
    "Eight simulators in three seeds, their alignment from 0 to 1"
    names = ("states", "replies", "states in replies", "value in replies", "stance in replies")
    return [{"person": f"s{i}", "seed": seed, **dict.fromkeys(names, i / 7), "score": score(i, seed)} for i in range(8) for seed in range(3)]


def test_correlations_find_what_follows_from_alignment_and_nothing_where_nothing_does():
    found = {(row.kind, row.alignment): row for row in correlations(points(lambda i, seed: i + seed / 10), "all")}
    assert found["pearson", "states"].value > 0.99 and found["spearman", "replies"].low > 0.9
    none = correlations(points(lambda i, seed: (i * 5 + seed * 3) % 7), "all")[0]
    assert none.low < 0 < none.high
    flat = correlations(points(lambda i, seed: 0.5), "all")[0]
    assert math.isnan(flat.value)
