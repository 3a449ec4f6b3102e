"Users whose gym knows better: what they say wrongly is tagged with the episode, kept, counted, and such episodes are played again."

import json
import math

import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import run_sync
from humanlm.environments.people import PolitePerson, _true_stance, _world_post
from humanlm.gyms.evaluation import load_episodes, play_tasks, user_split
from humanlm.gyms.mistakes import UserReviewer, _known_facts, episode_mistakes
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


STORY = find_gym("turtle").tasks(1, 0)[0]


@pytest.mark.parametrize(
    "answers, found",
    [
        (["Yes", "No", "No"], []),
        (["No", "No", "No"], [(0, "contradicts")]),
        (["Yes", "Yes", "No"], [(1, "contradicts")]),
        (["Maybe"] * 3, []),
    ],
)
def test_turtle_knows_which_answers_are_wrong(answers, found):
    wrong = STORY.criteria[2].never[0]
    env = talk(
        "turtle",
        STORY,
        scripted(*({"response": answer} for answer in answers)),
        f"[action] {STORY.criteria[0].statement}",
        f"[action] Was the cause {wrong}?",
        "[action] Did somebody behind it act alone at night?",
    )
    assert tags(env) == found


REQUEST = find_gym("intention").tasks(1, 0)[0]


@pytest.mark.parametrize(
    "says, found",
    [
        ("I would like {wish}.", []),
        ("I would like {other}.", [(0, "contradicts")]),
        ("Not {other}, but {wish}.", []),
        ("You decide.", []),
    ],
)
def test_intention_knows_what_its_user_wants(says, found):
    gym, detail = find_gym("intention"), REQUEST.details[0]
    wish = REQUEST.wish(0, 0)["wish"]
    other = next(option for option in detail.options if option != wish)
    env = talk(
        "intention",
        REQUEST,
        scripted({"response": says.format(wish=wish, other=other)}),
        ToolCall("action", f"{detail.description}: {', '.join(detail.options)}?"),
    )
    assert env.turns[0].reward > 0 and tags(env) == found
    assert wish in _known_facts(env).task and gym.name == "intention"


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


def test_a_text_without_words_of_the_world_says_no_side():
    gym = find_gym("advice")
    task = gym.tasks(1, 0)[0]
    assert (
        tags(
            talk(
                "advice",
                task,
                scripted({"reply": "I should have to think about that <b>"}),
                "[action] 1",
            )
        )
        == []
    )


def test_rules_are_never_tagged_and_cost_no_review():
    env = talk("turtle", STORY, None, "[action] Was it war?")
    assert episode_mistakes(env) == run_sync(UserReviewer().episode(env)) == []


# ---- kept, counted, played again


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


def test_episodes_with_a_mistake_stand_apart_and_can_be_played_again(tmp_path):
    gym, path = find_gym("telepathy"), tmp_path / "episodes.jsonl"
    tasks = gym.tasks(6, 0)
    misled = {task.id for task in tasks[:3]}
    user = Liar(lambda env: env.task.id in misled and env.seed < 1000)
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
    again = run_sync(play_tasks(gym, tasks, trusting, user=user, path=path, rerun=1))
    assert [e.rerun for e in again] == [1, 1, 1, 0, 0, 0] and all(
        e.score == 1 and not e.tags for e in again
    )
    assert [e.key for e in load_episodes(path)] == [e.key for e in again] and len(
        load_episodes(path, every=True)
    ) == 9, "those before stay in the file"
    asked = len(user.seeds)
    assert (
        run_sync(play_tasks(gym, tasks, trusting, user=user, path=path, rerun=1)) == again
        and run_sync(play_tasks(gym, tasks, trusting, user=user, path=path)) == again
    )
    assert len(user.seeds) == asked, "nothing is played a third time"


def test_a_user_who_errs_again_is_counted_again(tmp_path):
    gym, path = find_gym("telepathy"), tmp_path / "episodes.jsonl"
    user = Liar(lambda env: True)
    for rerun in (0, 1, 2):
        found = run_sync(
            play_tasks(gym, gym.tasks(2, 0), trusting, user=user, path=path, rerun=rerun)
        )
    assert (
        [e.rerun for e in found] == [2, 2]
        and len({*user.seeds}) == 3
        and len(load_episodes(path, every=True)) == 6
    )
    assert user_split(found)["no mistake"] == (None, []) and user_split([])["all"] == (None, [])


def test_a_failed_user_is_in_no_mean(tmp_path):
    gym = find_gym("telepathy")
    played = run_sync(
        play_tasks(gym, gym.tasks(2, 0), trusting, user=scripted(*[{"nothing": 1}] * 8))
    )
    assert all(math.isnan(e.score) for e in played) and user_split(played)["all"][0].n == 0
