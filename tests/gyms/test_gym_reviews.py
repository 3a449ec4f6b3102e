"Users whose gym knows better: what they say wrongly is tagged with the episode, kept and counted."

import json
import math

import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import run_sync
from humanlm.environments.people import PolitePerson, _true_stance, _world_post
from humanlm.gyms.evaluation import load_episodes, play_tasks, user_split
from humanlm.gyms.mistakes import episode_mistakes
from humanlm.gyms.protocol import ToolCall, find_gym
from humanlm.gyms.users import ModelUser, note_answer


def scripted(*answers):
    return ModelUser(ScriptedClient([json.dumps(answer) for answer in answers]))


def talk(name, task, user, *calls):
    env = find_gym(name).play(task, user=user)
    for call in calls:
        run_sync(env.step(call))
    return env


def tags(env):
    return [(mistake.turn, mistake.tag) for mistake in episode_mistakes(env)]


@pytest.mark.parametrize("name", ["advice", "appeal"])
def test_people_of_the_world_are_tagged_where_they_take_the_other_side(name):
    gym, seen = find_gym(name), set()
    for task in gym.tasks(12, 0):
        env = talk(name, task, PolitePerson(), gym.expert(gym.play(task)))
        [(pole, _)] = env.heard
        target, domain = (
            (next(option[0] for option in task.options if option[1] == pole), task.domain)
            if name == "advice"
            else (task.aside, task.domain)
        )
        against = (
            _true_stance(task.person, _world_post(domain, target, pole, "it cuts costs")).direction
            == "against"
        )
        assert ((0, "contradicts") in tags(env)) == against, (
            "whoever always agrees is wrong about those who do not"
        )
        seen.add(against)
    assert seen == {True, False}


def test_rules_are_never_tagged():
    story = find_gym("turtle").tasks(1, 0)[0]
    assert episode_mistakes(talk("turtle", story, None, "[action] Was it war?")) == []


# ---- kept and counted


class Liar:
    "Answers the wrong way where its seed says so"

    name = "liar"

    def __init__(self, lies):
        self.lies, self.seeds = lies, []

    async def __call__(self, env, role, payload):
        self.seeds.append(env.seed)
        answer = env.rule_answerer(**payload)
        if self.lies(env):
            answer = {"response": {"Yes": "No", "No": "Yes"}.get(answer["response"], "Maybe")}
        note_answer(env, role, payload, answer)
        return answer


def trusting(env):
    "Believe what is said about the first word"
    first = env.task.title.split()[0]
    if not env.turns:
        return ToolCall("action", f"Is it {first}?")
    return ToolCall("answer", env.task.title if env.turns[0].feedback == "Yes." else "xyzzy")


def test_episodes_with_a_mistake_stand_apart(tmp_path):
    gym, path = find_gym("telepathy"), tmp_path / "episodes.jsonl"
    tasks = gym.tasks(6, 0)
    misled = {task.id for task in tasks[:3]}
    user = Liar(lambda env: env.task.id in misled)
    first = run_sync(play_tasks(gym, tasks, trusting, user=user, path=path))
    assert (
        [len(e.mistakes) for e in first] == [1, 1, 1, 0, 0, 0]
        and load_episodes(path)[0].mistakes == first[0].mistakes
        and first[0].user == "liar"
    )
    split = {
        name: (mean and mean.value, [e.task for e in found])
        for name, (mean, found) in user_split(load_episodes(path)).items()
    }
    assert [split[name][0] for name in ("all", "no mistake", "helped", "hindered")] == [
        0.5,
        1.0,
        None,
        0.0,
    ] and set(split["hindered"][1]) == misled


def test_a_failed_user_is_in_no_mean(tmp_path):
    gym = find_gym("telepathy")
    played = run_sync(
        play_tasks(gym, gym.tasks(2, 0), trusting, user=scripted(*[{"nothing": 1}] * 8))
    )
    assert all(math.isnan(e.score) for e in played) and user_split(played)["all"][0].n == 0
