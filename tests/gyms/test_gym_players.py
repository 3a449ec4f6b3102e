"Who plays the person of advice and appeal, chosen by name on a command line or in a file."

import pytest
from server import serving

from humanlm.core.basics import ConfigError, run_sync
from humanlm.gyms.evaluation import EpisodeRecord
from humanlm.gyms.people import PolitePerson
from humanlm.gyms.protocol import play_through
from humanlm.gyms.recipe import _load_gyms
from humanlm.gyms.users import ModelUser
from humanlm.training.run import read_settings


def work_of(*argv, gym="advice"):
    _, s = read_settings(
        [
            "--run.recipe",
            "gyms",
            "--gyms.train",
            f"[{gym}]",
            "--gyms.tasks",
            "2",
            "--gyms.test_n",
            "1",
            *argv,
        ]
    )
    return _load_gyms(s)


def played(work):
    "One episode of the expert with the user of a run"
    [(name, gym)] = work.gyms.items()
    env = run_sync(
        play_through(
            gym.play(work.tasks["test"][name][0], user=work.user, judge=work.judge), gym.expert
        )
    )
    return EpisodeRecord.of(gym, env), env


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A tiny simulator that learned nothing"
    pytest.importorskip("torch", reason="needs torch: a simulator runs in this process")
    from humanlm.alignment.contract import contract
    from humanlm.hierarchy.prompts import HierarchyConfig
    from humanlm.models.checkpoints import make_model, save_model
    from humanlm.models.config import ModelConfig
    from humanlm.training.sampling import RolloutConfig

    asked = HierarchyConfig(
        levels=["stance", "response"], thinking="hetero", response_tokens=12, state_tokens=4
    )
    texts = [
        f"the {a} {b} is {c}"
        for a in ("night", "city")
        for b in ("tram", "market")
        for c in ("fine", "late")
    ]
    loaded = make_model(
        ModelConfig(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=400),
        texts,
        [f"<{slash}{n}>" for n in asked.levels for slash in ("", "/")],
    )
    return save_model(
        *loaded,
        tmp_path_factory.mktemp("models") / "tram",
        contract(ModelConfig(), asked, RolloutConfig(), "humanlm", "news"),
    )


@pytest.mark.parametrize("gym", ["advice", "appeal"])
def test_the_world_plays_the_person_unless_somebody_is_named(gym):
    episode, _ = played(work_of(gym=gym))
    assert episode.score == 1


@pytest.mark.parametrize("gym", ["advice", "appeal"])
def test_somebody_polite_is_chosen_by_name_in_a_file(gym, tmp_path):
    (tmp_path / "polite.yaml").write_text("user: {model: 'humanlm.gyms.people:PolitePerson'}\n")
    work = work_of("--config", str(tmp_path / "polite.yaml"), gym=gym)
    _, env = played(work)
    assert isinstance(work.user, PolitePerson) and "In truth" in env.turns[-1].feedback
    assert work.notes["players"] == {"user": "polite", "judge": "rule"}, (
        "who played is told in the record of a run"
    )


def test_a_model_that_is_only_told_plays_the_person():
    with serving() as service:
        service.configure(says='{"reply": "look, i love it. every coin must be watched."}')
        work = work_of("--user.model", "vllm/tiny", "--user.base_url", service.url)
        _, env = played(work)
    assert (
        env.turns[0].feedback.startswith("look, i love it.")
        and work.ledgers["user"].total.calls == len(env.turns) - 1
    )


def test_a_trained_simulator_plays_the_person_by_its_folder(folder):
    work = work_of("--user.model", f"simulator/{folder}")
    assert isinstance(work.user, ModelUser) and work.user.simulates
    episode, env = played(work)
    assert episode.stop == "user_error" or env.turns[0].feedback


def test_a_function_of_ones_own_plays_by_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "mumbler.py").write_text(
        'async def mumble(env, role, payload): return {"reply": "hm."}\nclass Shy:\n   '
        ' name = "shy"\n    async def __call__(self, env, role, payload): return '
        '{"reply": "oh."}\nnobody = 3\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, shown, said in (("mumbler:mumble", "mumble", "hm."), ("mumbler:Shy", "shy", "oh.")):
        work = work_of("--user.model", name)
        assert work.notes["players"]["user"] == shown
        assert played(work)[1].turns[0].feedback == said
    for name, said in (
        ("mumbler:mumbel", "Did you mean 'mumble'"),
        ("mumblr:x", "there is no module 'mumblr'"),
    ):
        with pytest.raises(ConfigError, match=said):
            work_of("--user.model", name)
