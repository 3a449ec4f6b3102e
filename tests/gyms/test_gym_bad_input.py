"Each bad input has one defined result, which is counted and shown."

import json
import math
import time

import pytest
from server import serving

from humanlm.clients.client import ScriptedClient
from humanlm.core.basics import ConfigError, DataError, run_sync
from humanlm.gyms.evaluation import (
    EpisodeRecord,
    gym_results,
    load_episodes,
    play_tasks,
    user_split,
)
from humanlm.gyms.mistakes import UserFacts, episode_mistakes
from humanlm.gyms.protocol import (
    STOP_REASONS,
    Environment,
    Feedback,
    GymTask,
    UserRole,
    find_gym,
    gym_names,
    play_through,
    read_call,
)
from humanlm.gyms.users import GymUserConfig, ModelUser
from humanlm.training.run import read_settings

ALL = pytest.mark.parametrize("name", gym_names())


def played(name, *texts, **given):
    "The record of one episode, whose policy says these texts again and again"
    gym = find_gym(name)
    env = gym.play(gym.tasks(1, 0)[0], **given)
    run_sync(play_through(env, lambda env: texts[len(env.turns) % len(texts)]))
    return EpisodeRecord.of(gym, env), env


def mean_of(episodes, metric):
    return next(
        row.mean
        for row in gym_results({"policy": episodes}).rows
        if row.metric == metric and row.level == "all"
    )


# ---- of the policy


@pytest.mark.parametrize(
    "text, kind, content",
    [
        (
            '{"name": "interact_with_env", "arguments": "{\\"choice\\": \\"answer\\", '
            '\\"content\\": \\"3\\"}"}',
            "answer",
            "3",
        ),
        ('{"name": "interact_with_env", "arguments": "no JSON"}', "", None),
        ("I am sure.\n[answer] 3", "answer", "3"),
        ("I could say [answer] 3 now.", "", None),
        ("\n\n  [search] x", "search", "x"),
        ("\n" * 100_000 + " " * 100_000, "", None),
    ],
    ids=[
        "as chat APIs write it",
        "arguments that are none",
        "prose before it",
        "a kind within a sentence",
        "empty lines",
        "much of nothing",
    ],
)
def test_a_call_is_read_wherever_its_line_stands(text, kind, content):
    call = read_call(text)
    assert call.kind == kind and content in (None, call.content)


def test_a_call_is_looked_for_in_time_that_grows_with_the_text():
    start = time.process_time()
    for text in ("\n" * 200_000 + " " * 200_000, "<think>" * 50_000, "[action] \n" * 50_000):
        read_call(text)
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    "text, kind, content, more",
    [
        ("<think>Maybe it is\n[answer] 5", "", "", 0),
        ("<think>a</think>\n<think>or\n[answer] 5", "", "", 0),
        ("<think>\n[answer] 5\n</think>\n[answer] 6", "answer", "6", 0),
        ("[action] hello\n[Answer] x", "action", "hello", 1),
        ("[action] hello\n  [answer] x\n[SEARCH] y", "action", "hello", 2),
        ('{"choice": "search", "content": null}', "search", "", 0),
        ({"choice": "action", "content": "1 2 </think> 3"}, "action", "1 2 </think> 3", 0),
        ({"choice": 3}, "", "", 0),
        ("[answer] Use the <think> tag", "answer", "Use the <think> tag", 0),
        ('{"choice": "answer", "content": "the <think> tag"}', "answer", "the <think> tag", 0),
    ],
)
def test_thoughts_that_never_end_call_nothing_and_the_next_call_ends_the_first(
    text, kind, content, more
):
    call = read_call(text)
    assert (call.kind, call.content, call.more) == (kind, content, more)


def test_the_words_of_a_user_who_failed_open_no_tag_of_ours():
    gym = find_gym("telepathy")
    env = gym.play(
        gym.tasks(1, 0)[0], user=ModelUser(ScriptedClient(["<|im_start|>system <think>"] * 2))
    )
    turn = run_sync(env.step("[action] Is it red?"))
    assert env.stop == "user_error" and "<|im_start|>" not in turn.feedback


@ALL
@pytest.mark.parametrize(
    "text, fault, said",
    [
        ('{"choice": "dance", "content": "wildly"}', "format", "There is no 'dance' here"),
        ("[dance] wildly", "no_call", "There is no call in your message"),
        ("Well, I wonder.", "no_call", "There is no call"),
        ("", "no_call", "There is no call"),
        ('<tool_call>{"name": "interact_with_env", "argum', "bad_call", "There is no call"),
        ('{"content": "what?"}', "bad_call", "There is no call"),
    ],
    ids=["unknown choice", "unknown brackets", "no call", "nothing", "half a call", "no choice"],
)
def test_what_is_no_call_costs_a_turn_and_says_how_calls_are_written(name, text, fault, said):
    episode, env = played(name, text)
    assert (
        {turn.fault for turn in env.turns} == {fault}
        and episode.stop == "turn_limit"
        and episode.score == 0
        and len(env.turns) == env.config.max_turns
    )
    assert (
        said in env.turns[0].feedback
        and all(f"[{kind}]" in env.turns[0].feedback for kind in env.kinds)
        and mean_of([episode], "invalid calls") == 1
    )


@ALL
def test_a_choice_that_only_other_gyms_offer_is_told_so_and_reaches_no_user(name):
    async def nobody(env, role, payload):
        raise AssertionError("is asked")

    missing = {"action", "search", "answer"} - set(find_gym(name).environment.kinds)
    for kind in missing:
        episode, env = played(name, f"[{kind}] something", user=nobody, judge=nobody)
        assert (
            env.turns[0].fault == "format"
            and f"There is no '{kind}' here" in env.turns[0].feedback
            and mean_of([episode], "invalid calls") == 1
        )


def test_of_several_calls_the_first_is_executed_and_the_others_are_counted():
    episode, env = played("template", "[action] one\n[action] two\n[answer] three")
    assert (
        all((turn.kind, turn.content, turn.fault) == ("action", "one", "") for turn in env.turns)
        and len(env.turns) == env.config.max_turns
    )
    assert env.turns[0].more == 2 and mean_of([episode], "calls left out") == 2


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"choice": "answer", "content": "%s"}\n```',
        '<think>Is it {"choice": "answer", "content": "x"}?</think>{"choice": '
        '"answer", "content": "%s"}',
        "<think>[answer] x</think>[answer] %s",
        'I say:\n```\n{"choice": "answer", "content": "%s", "sure": true}\n```\nDone.',
    ],
    ids=["fence", "reasoning and JSON", "reasoning", "prose and fence"],
)
def test_calls_in_fences_or_after_reasoning_are_executed(text):
    truth = find_gym("template").tasks(1, 0)[0].truth
    episode, _ = played("template", text % truth)
    assert (episode.stop, episode.score, len(episode.turns)) == ("done", 1, 1) and mean_of(
        [episode], "invalid calls"
    ) == 0


def test_reasoning_that_never_ends_is_no_call():
    assert played("template", "<think>Is it [answer] x? I wonder")[1].turns[0].fault == "no_call"


@ALL
def test_an_action_after_the_end_is_refused_and_changes_nothing(name):
    gym = find_gym(name)
    env = run_sync(play_through(gym.play(gym.tasks(1, 0)[0]), gym.expert))
    before = list(env.turns), env.score, env.stop
    with pytest.raises(DataError, match=r"has ended \(done\). Begin a new one"):
        run_sync(env.step("[action] more"))
    assert (env.turns, env.score, env.stop) == before


# ---- of the user


def test_a_user_who_times_out_ends_its_episode_without_a_score(tmp_path):
    with serving() as service:
        service.configure(faults={"stall": 1.0})
        user = GymUserConfig("vllm/tiny", base_url=service.url, attempts=1, timeout=0.2).player()
        gym = find_gym("telepathy")
        [episode] = run_sync(
            play_tasks(gym, gym.tasks(1, 0), gym.expert, user=user, path=tmp_path / "e.jsonl")
        )
    assert (
        episode.stop == "user_error"
        and math.isnan(episode.score)
        and len(episode.turns) == 1
        and "does not answer" in episode.turns[0]["feedback"]
    )
    assert (
        mean_of(load_episodes(tmp_path / "e.jsonl"), "user failed") == 1
        and STOP_REASONS["user_error"]
    )


class TeaTask(GymTask):
    opening, secrets = "I would like to order.", ("green tea",)


class TeaEnvironment(Environment):
    "Somebody who wants tea"

    roles = {
        "guest": UserRole(
            "You want green tea. You hear: {said}",
            {"type": "object", "properties": {"reply": {"type": "string"}}, "required": ["reply"]},
        )
    }

    def user_facts(self):
        return UserFacts("You want something hot.", secrets=("green tea",))

    async def on_action(self, content):
        return Feedback((await self.ask("guest", said=content))["reply"])

    def rule_guest(self, said):
        return {"reply": "Something hot."}


def tea(*replies):
    "The mistakes of a guest who says this"
    env = TeaEnvironment(
        TeaTask("tea"),
        find_gym("template").config,
        ModelUser(ScriptedClient([json.dumps({"reply": reply}) for reply in replies])),
    )
    for question, _ in zip(
        ("What would you like?", "And how large may the cup be, please?"), replies
    ):
        run_sync(env.step(f"[action] {question}"))
    assert not env.stop, "the episode goes on, and keeps its score"
    return [(mistake.turn, mistake.tag, mistake.helps) for mistake in episode_mistakes(env)]


def test_a_user_who_repeats_itself_is_tagged_as_hindering():
    assert tea(
        "I really would like something hot, thank you.",
        "I really would like something hot, thank you.",
    ) == [(1, "repeats", False)]


def test_a_user_who_reveals_the_secret_is_tagged_as_helping():
    assert tea("Something hot.", "Green tea, of course!") == [(1, "reveals", True)]


@pytest.mark.parametrize(
    "said",
    [
        "How can I help you today?",
        "I have booked that for you. Please provide your name, and feel free to contact us.",
        "You're welcome!",
    ],
)
def test_a_user_who_answers_as_the_assistant_is_tagged(said):
    assert [tag for _, tag, _ in tea(said)] == ["assistant"]


def test_a_user_who_speaks_for_both_is_not_delivered():
    env = TeaEnvironment(
        TeaTask("tea"),
        find_gym("template").config,
        ModelUser(ScriptedClient([json.dumps({"reply": "Tea.\nAssistant: Which one?"})] * 2)),
    )
    run_sync(env.step("[action] What would you like?"))
    assert (
        env.stop == "user_error"
        and math.isnan(env.score)
        and "speaks for the assistant" in env.turns[0].feedback
    )


def test_mistakes_of_users_are_counted_and_shown_beside_results():
    gym = find_gym("telepathy")

    async def fibber(env, role, payload):
        from humanlm.gyms.users import note_answer

        answer = {
            "response": "No"
            if env.task.id.endswith("0")
            else env.rule_answerer(**payload)["response"]
        }
        note_answer(env, role, payload, answer)
        return answer

    episodes = run_sync(play_tasks(gym, gym.tasks(4, 0), gym.expert, user=fibber))
    split = {name: len(found) for name, (_, found) in user_split(episodes).items()}
    assert split == {"all": 4, "no mistake": 3, "helped": 0, "hindered": 1} and {
        tag["tag"] for e in episodes for tag in e.tags
    } == {"contradicts"}


# ---- of tasks and names

ROWS = {
    "function": {
        "id": "f",
        "rule": "a + b + c + d",
        "test_case": [1, 2, 3, 4],
        "expected_result": 10.0,
    },
    "persuade": {"id": "p", "claim": "Cats are best.", "argument": "They purr."},
    "telepathy": {
        "id": "t",
        "title": "Abacus",
        "description": "I think of a tool.",
        "target_entity": "Abacus - it counts",
        "category": "tool",
    },
    "intention": {
        "id": "i",
        "task": "Plan a trip.",
        "category": "Travel",
        "missing_details": [
            {
                "description": "budget",
                "importance": "3",
                "inquiry": "How much?",
                "options": ["little"],
            }
        ],
    },
    "turtle": {
        "story_id": "s",
        "new_title": "Lamp",
        "new_surface": "He sleeps.",
        "new_bottom": "The sea is mined.",
        "evaluation": [{"statement": "The sea is mined.", "score": 1.0}],
    },
    "search": {"id": "b", "question": "Which river?", "answer": "Neckar"},
    "household": {"id": "h", "game": "game.tw-pddl"},
}
NEEDED = {
    "function": ["rule", "test_case"],
    "persuade": ["id", "claim", "argument"],
    "telepathy": ["title", "target_entity", "category"],
    "intention": ["task", "missing_details"],
    "turtle": ["new_title", "new_surface", "new_bottom", "evaluation"],
    "search": ["question", "answer"],
    "household": ["game"],
}


@pytest.mark.parametrize(
    "name, field", [(name, field) for name, fields in NEEDED.items() for field in fields]
)
@pytest.mark.parametrize(
    "value", [None, "", 7, [], {}], ids=["none", "empty", "number", "list", "object"]
)
def test_a_task_with_a_field_that_is_missing_or_of_another_kind_is_refused_by_name(
    name, field, value, monkeypatch, tmp_path
):
    monkeypatch.setenv("HUMANLM_DATA", str(tmp_path))
    read, row = find_gym(name).read, ROWS[name]
    assert read(row).id
    for broken in ({key: text for key, text in row.items() if key != field}, row | {field: value}):
        with pytest.raises(DataError, match="(?i)row"):
            read(broken)


@ALL
def test_whatever_a_row_holds_it_is_read_or_refused(name):
    read = find_gym(name).read
    if read is None:
        return
    for row in (
        {},
        {"id": None},
        {"reward_model": {}},
        {"id": "x" * 9999, "title": "\x00"},
        {"id": ["a"], "task": {}, "info": 3, "aspects": "no"},
    ):
        with pytest.raises(DataError):
            read(row)


@pytest.mark.parametrize(
    "named, nearest",
    [
        ("functoin", "function"),
        ("TravleGym-v0", "travel"),
        ("interact_turtel", "turtle"),
        ("Telepathi", "telepathy"),
        ("alfwrld", ""),
    ],
)
def test_a_gym_that_does_not_exist_is_refused_with_the_nearest_name(named, nearest):
    with pytest.raises(ConfigError, match=f"Did you mean '{nearest}'" if nearest else "gym"):
        find_gym(named)


def test_settings_that_name_no_gym_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="gyms.train: no gym 'advise'. Did you mean 'advice'"):
        read_settings(["--run.recipe", "gyms", "--gyms.train", "[advise]"])
    with pytest.raises(ConfigError, match="gyms.held_out: no gym 'appeel'"):
        read_settings(
            ["--run.recipe", "gyms", "--gyms.train", "[advice]", "--gyms.held_out", "[appeel]"]
        )
