"""Every way of training on a real tiny model: what is asked, what is rewarded, and that each model is asked as it was trained."""
import json
from types import SimpleNamespace

import pytest
import yaml

import humanlm.train
from humanlm.data import sample_examples
from humanlm.hierarchy import HierarchyConfig
from humanlm.modes import MODES, cold_start_hierarchy, hierarchy_of, training_rows
from humanlm.rollout import load_policy
from humanlm.trajectory import load_trajectories

EXAMPLES = sample_examples()[:4]
TINY = {
    "run": {"methods": list(MODES), "report": False}, "data": {"max_train": 60, "max_test": 4},
    "world": {"users": 36, "replies_per_user": 12},
    "model": {"vocab": 700, "hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64},
    "hierarchy": {"levels": ["stance", "response"], "state_tokens": 12, "response_tokens": 20, "thought_tokens": 30},
    "sft": {"lesson_steps": 8, "polite_steps": 4, "reply_steps": 4, "batch": 16},
    "rollout": {"num_prompts": 2, "group_size": 4}, "judge": {"model": "oracle"},
    "trainer": {"max_steps": 20, "save_steps": 10, "learning_rate": 0.002}, "eval": {"bootstrap": 50},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "All modes, twenty steps each, one cold start"
    folder = tmp_path_factory.mktemp("modes")
    settings = TINY | {"run": TINY["run"] | {"name": "tiny", "out": str(folder)}}
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(settings), "utf-8")
    assert humanlm.train.main(["--config", str(config)]) == 0
    return folder / "tiny"


def settings(*methods, **hierarchy):
    return SimpleNamespace(hierarchy=HierarchyConfig(**hierarchy), run=SimpleNamespace(methods=list(methods)))


THINKING = {"sft": False, "sft-think": True, "response-only": False, "response-only-think": True, "humanlm": False, "humanlm-hetero": True}


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_comes_before_replies_only_and_only_where_the_mode_thinks(name):
    found = hierarchy_of(settings(), name)
    assert (found.thinks("response"), found.thinks("stance")) == (THINKING[name], False)
    for row in training_rows(EXAMPLES, found, name):
        assert row["thinking"] == (THINKING[name] and row["level"] == "response")


@pytest.mark.parametrize("methods,thinking", [(["sft", "humanlm"], "off"), (["sft", "humanlm-hetero"], "hetero"), (["sft-think"], "hetero")])
def test_one_cold_start_prepares_for_all(methods, thinking):
    assert cold_start_hierarchy(settings(*methods)).thinking == thinking
    assert cold_start_hierarchy(settings(*methods, thinking="on")).thinking == "on"


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.learns_from == "score"])
def test_twenty_steps_of_every_mode(run, name):
    said = load_trajectories(run / "trajectories" / name)
    assert len(said) == 20 * 8 and {t.step for t in said} == set(range(20))
    assert {t.level for t in said} == ({"stance", "response"} if MODES[name].asks == "each" else {"response"})
    cap = {"stance": 12, "response": 20 + 30 * THINKING[name]}
    assert all(len(t.completion_ids) <= cap[t.level] for t in said)
    assert all(list(t.scores) == [t.level] for t in said)


@pytest.mark.parametrize("name", ["base", "cold-start", *MODES])
def test_each_model_says_how_it_was_trained(run, name):
    own = json.loads((run / "models" / name / "humanlm.json").read_text())
    assert own["name"] == name and own["hierarchy"]["thinking"] == ("hetero" if THINKING.get(name) else "off")
    assert load_policy(run / "models" / name).hierarchy.thinks("response") == bool(THINKING.get(name))
