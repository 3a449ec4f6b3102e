"Episodes: what reaches whom, what a failed prediction does, how they end, and how they are kept"

import asyncio
import json
import math

import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import DataError
from humanlm.data.trajectory import load_trajectories, save_trajectories
from humanlm.social.agents import (
    ChatAgent,
    JudgeEvaluator,
    _bargain_marks,
    _Buyer,
    _EpisodePlan,
    _Foresight,
    _literal_world,
    _make_agent,
    _private_record,
    _seller,
    _world_model,
    bargain,
    run_episodes,
)
from humanlm.social.episodes import (
    DIMENSIONS,
    KINDS,
    Action,
    AgentView,
    Role,
    Scenario,
    ScriptedAgent,
    _EpisodeEvent,
    _observations,
    from_sotopia,
    from_trajectory,
    run_episode,
    to_sotopia,
    to_trajectory,
)
from humanlm.stories.contexts import make_context


def run(coroutine):
    return asyncio.run(coroutine)


def say(text="Hm.", thought="", kind="speak", to=()):
    return json.dumps({"thought": thought, "type": kind, "argument": text, "to": list(to)})


def party(n=2):
    return Scenario(
        "party",
        "A kitchen.",
        tuple(
            Role(name, f"GOAL-{name}", f"about {name}", f"SECRET-{name}", {"limit": 1})
            for name in ("Ada", "Bo", "Cy")[:n]
        ),
    )


GUESS = json.dumps(
    {
        "timestep": "1",
        "state": "none",
        "observations": ["Ada: none", "Bo: <mental_state>I am moved</mental_state>"],
        "actions": ["Bo: nods"],
    }
)


# ---- privacy


def test_nothing_private_of_others_reaches_any_prompt():
    "Aims, secrets, numbers, thoughts and whispers of others are in no request of any agent or its world model"
    clients = {
        name: ScriptedClient(lambda request, name=name: say(f"PUBLIC-{name}", f"THOUGHT-{name}"))
        for name in ("Ada", "Bo", "Cy")
    }
    clients["Cy"] = ScriptedClient(lambda request: say("WHISPER", "THOUGHT-Cy", to=["Bo"]))
    worlds = {
        name: ScriptedClient(lambda request: LLMError("bad answer", "no")) for name in clients
    }
    cast = {
        name: _Foresight(ChatAgent(client), _world_model(worlds[name]))
        for name, client in clients.items()
    }
    episode = run(run_episode(party(3), cast, max_turns=9))
    assert [event.action.kind for event in episode.events] == ["speak"] * 9
    for name in clients:
        asked = "".join(
            json.dumps(request.messages)
            for client in (clients[name], worlds[name])
            for request in client.requests
        )
        others = [other for other in clients if other != name]
        assert [
            f"{kind}-{other}"
            for other in others
            for kind in ("GOAL", "SECRET", "THOUGHT")
            if f"{kind}-{other}" in asked
        ] == []
        assert all(f"{kind}-{name}" in asked for kind in ("GOAL", "SECRET", "THOUGHT"))
        assert ("WHISPER" in asked) == (name != "Ada")
        assert worlds[name].requests and all(
            f"PUBLIC-{other}" in asked for other in others if other != "Cy"
        )


def test_a_view_gives_no_way_to_the_episode():
    seen = ScriptedAgent("Hello.")
    run(run_episode(party(), {"Ada": ScriptedAgent("Hi.", "You?"), "Bo": seen}, max_turns=4))
    view = seen.views[0]
    assert set(vars(view)) == {
        "role",
        "setting",
        "others",
        "memory",
        "turn",
        "turns",
        "seed",
        "available",
    }
    assert view.others == {"Ada": "about Ada"} and [item.last_turn for item in view.memory] == [
        'Ada said: "Hi."'
    ]
    with pytest.raises(AttributeError):
        view.turn = 3


def test_who_has_left_perceives_nothing_more_and_is_not_asked():
    gone = ScriptedAgent(Action("leave"))
    episode = run(
        run_episode(
            party(3), {"Ada": gone, "Bo": ScriptedAgent("One."), "Cy": ScriptedAgent("Two.")}
        )
    )
    assert [item.last_turn for item in episode.memory("Ada")] == ["Ada left the conversation"]
    assert len(gone.views) == 1 and episode.end == "stale"


# ---- foresee and act


def test_refinement_is_used_and_sees_the_prediction():
    actor, world = ScriptedClient([say("draft"), say("refined")]), ScriptedClient([GUESS])
    cast = {"Ada": _Foresight(ChatAgent(actor), _world_model(world)), "Bo": ScriptedAgent()}
    episode = run(run_episode(party(), cast, max_turns=1))
    assert str(episode.events[0].action) == 'said: "refined"' and "I am moved" in json.dumps(
        actor.requests[1].messages
    )
    assert "draft" in json.dumps(world.requests[0].messages)


@pytest.mark.parametrize(
    "predict",
    [
        _world_model(ScriptedClient(lambda request: "nothing")),
        _world_model(ScriptedClient(lambda request: LLMError("auth", "down"))),
        lambda record: record.steps[99],
        lambda record: None,
    ],
)
def test_the_draft_stands_when_prediction_fails(predict):
    cast = {
        "Ada": _Foresight(ChatAgent(ScriptedClient([say("draft")])), predict),
        "Bo": ScriptedAgent(),
    }
    episode = run(run_episode(party(), cast, max_turns=1))
    assert (
        episode.events[0].action.argument == "draft"
        and "draft kept" in episode.events[0].action.note
    )


def test_the_draft_stands_when_refinement_fails():
    cast = {
        "Ada": _Foresight(
            ChatAgent(ScriptedClient([say("draft"), "no", "no"])),
            _world_model(ScriptedClient([GUESS])),
        ),
        "Bo": ScriptedAgent(),
    }
    episode = run(run_episode(party(), cast, max_turns=1))
    assert (
        episode.events[0].action.argument == "draft"
        and "refinement failed" in episode.events[0].action.note
    )


def test_a_draft_of_nothing_is_not_foreseen():
    world = ScriptedClient([GUESS])
    cast = {
        "Ada": _Foresight(ChatAgent(ScriptedClient([say("", kind="none")])), _world_model(world)),
        "Bo": ScriptedAgent("x"),
    }
    episode = run(run_episode(party(), cast, max_turns=1))
    assert episode.events[0].action.kind == "none" and world.requests == []


def test_a_private_record_survives_names_that_begin_alike():
    scenario = Scenario("twins", "A hall.", (Role("Ann", "x"), Role("Anna", "y")))
    seen = ScriptedAgent("Me.")
    run(run_episode(scenario, {"Ann": ScriptedAgent("Hi."), "Anna": seen}, max_turns=2))
    record = _private_record(seen.views[0], Action("speak", "Me."))
    assert [step.actions for step in record.steps] == [
        {"Anna": "none", "Ann": 'said: "Hi."'},
        {"Anna": 'said: "Me."', "Ann": "none"},
    ]


def test_what_agents_and_judges_read_counts_turns_from_1_and_records_count_from_0():
    model = ScriptedClient(lambda request: say("Yes."))
    episode = run(
        run_episode(
            party(), {"Ada": ScriptedAgent("Hi.", "You?"), "Bo": ChatAgent(model)}, max_turns=4
        )
    )
    first, last = (request.messages[-1]["content"] for request in model.requests)
    assert (
        "turn 2 of at most 4" in first and "turn 4 of at most 4" in last and "turn 0" not in first
    )
    assert (
        'Turn 1: Ada said: "Hi."' in first
        and 'Turn 3: Ada said: "You?"' in last
        and "Turn 0" not in last
    )
    assert episode.transcript.splitlines()[0].startswith(
        "Turn 1: Ada"
    ) and episode.transcript.splitlines()[-1].startswith("Turn 4: Bo")
    assert [item.turn_number for item in episode.memory("Ada")] == [0, 1, 2, 3] and [
        event.turn for event in episode.events
    ] == [0, 1, 2, 3]


# ---- endings and lost turns


@pytest.mark.parametrize(
    "actions, end, turns",
    [
        (["a"] * 9, "turns", 6),
        ([], "stale", 2),
        ([Action("leave")], "left", 1),
        (["a", Action(), Action()], "stale", 4),
    ],
)
def test_endings(actions, end, turns):
    partner = (
        ScriptedAgent(*["b"] * 9)
        if end == "turns"
        else ScriptedAgent("b")
        if turns == 4
        else ScriptedAgent()
    )
    episode = run(
        run_episode(party(), {"Ada": ScriptedAgent(*actions), "Bo": partner}, max_turns=6)
    )
    assert (episode.end, len(episode.events)) == (end, turns)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I say hello",
        say("x", kind="dance"),
        say(" "),
        say("x", to=["Zoe"]),
        '{"type": "speak"}',
        say("x", to=["Ada"]),
    ],
)
def test_an_unusable_answer_loses_the_turn_and_nothing_else(answer):
    cast = {
        "Ada": ChatAgent(ScriptedClient(lambda request: answer)),
        "Bo": ScriptedAgent("still here", "and here"),
    }
    episode = run(run_episode(party(), cast, max_turns=4))
    assert [event.action.kind for event in episode.events] == ["none", "speak"] * 2 and len(
        episode.errors
    ) == 2


def test_same_seed_same_episode():
    def dicer(view):
        return Action("speak", str(view.seed))

    first, again, other = (
        run(run_episode(party(), {"Ada": dicer, "Bo": dicer}, max_turns=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert first == again != other and len({event.action.argument for event in first.events}) == 4


# ---- scores


def test_a_judge_keeps_to_the_ranges_or_gives_nothing():
    def marks(value):
        return json.dumps(
            {
                name: {"reasoning": "r", "score": max(low, min(high, value))}
                for name, (low, high, _) in DIMENSIONS.items()
            }
        )

    broken = json.dumps(json.loads(marks(1)) | {"goal": {"reasoning": "r", "score": 11}})
    judge = ScriptedClient([marks(5), broken, broken])
    episode = run(
        run_episode(
            party(), {"Ada": ScriptedAgent("x"), "Bo": ScriptedAgent()}, JudgeEvaluator(judge)
        )
    )
    assert (
        episode.goal("Ada") == 5
        and math.isnan(episode.goal("Bo"))
        and "judge, Bo" in episode.errors[0]
    )
    assert [mark.value for mark in episode.marks["Ada"].values()] == [5, 5, 5, 0, 0, 5, 5]


def test_foresight_helps_in_the_synthetic_bargain_and_a_blind_world_does_not():
    def blind(record):
        return make_context(record.agents, [("none", {}, {}) for _ in record.steps])

    buyers = {
        "plain": _Buyer,
        "blind": lambda: _Foresight(_Buyer(), blind),
        "foresight": lambda: _Foresight(_Buyer(), _literal_world),
    }
    goals = {
        name: [
            run(
                run_episode(bargain(seed), {"Piet": make(), "Hanne": _seller}, _bargain_marks)
            ).goal("Piet")
            for seed in range(60)
        ]
        for name, make in buyers.items()
    }
    assert goals["plain"] == goals["blind"] and sum(goals["foresight"]) > sum(goals["plain"]) + 60


# ---- records


def test_trajectories_keep_everything(tmp_path):
    odd = Action("speak", 'He said: "no"\nand left; 100 %', "I | you", to=("Bo",))
    episode = run(
        run_episode(
            party(3),
            {
                "Ada": ScriptedAgent(odd, Action("leave")),
                "Bo": ScriptedAgent(Action("action", "[pours] tea")),
                "Cy": ScriptedAgent(),
            },
            lambda e: _bargain_marks(e) if e.scenario.id == "x" else {},
        )
    )
    path = save_trajectories(tmp_path / "e.parquet", [to_trajectory(episode)])
    assert from_trajectory(load_trajectories(path)[0]) == episode


def test_resume_runs_only_what_is_missing(tmp_path):
    asked = []

    def make(name):
        asked.append(name)
        return (
            ChatAgent(ScriptedClient(lambda request: LLMError("auth", "down")))
            if name == "buyer" and len(asked) < 4
            else _make_agent(name)
        )

    plans = [_EpisodePlan(bargain(seed), {"Piet": "buyer", "Hanne": "seller"}) for seed in range(3)]
    first = run(run_episodes(plans, _bargain_marks, tmp_path, make, concurrency=1))
    failed = [i for i, each in enumerate(first) if isinstance(each, LLMError)]
    assert failed and len(failed) < 3
    asked.extend("later" for _ in range(9))
    n = len(asked)
    again = run(run_episodes(plans, _bargain_marks, tmp_path, make))
    assert len(asked) - n == 2 * len(failed) and not any(
        isinstance(each, LLMError) for each in again
    )
    assert run(run_episodes(plans, _bargain_marks, tmp_path, lambda name: 1 / 0)) == again


@pytest.mark.parametrize("change", [{"max_turns": 3}, {"evaluator": None}])
def test_other_settings_are_other_episodes(tmp_path, change):
    plans = [_EpisodePlan(bargain(1), {"Piet": "buyer", "Hanne": "seller"})]
    options = {"evaluator": _bargain_marks} | change
    run(run_episodes(plans, _bargain_marks, tmp_path))
    run(run_episodes(plans, folder=tmp_path, **options))
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_kept_marks_are_those_of_the_judge_that_is_asked(tmp_path):
    def marks(value):
        return json.dumps(
            {
                name: {"reasoning": "r", "score": max(low, min(high, value))}
                for name, (low, high, _) in DIMENSIONS.items()
            }
        )

    plans, found = [_EpisodePlan(bargain(0), {"Piet": "buyer", "Hanne": "seller"})], []
    for name, value in (("scripted/strict", 1), ("scripted/kind", 5), ("scripted/strict", 9)):
        [episode] = run(
            run_episodes(
                plans,
                JudgeEvaluator(ScriptedClient(lambda request, value=value: marks(value), name)),
                tmp_path,
            )
        )
        found.append(episode.goal("Piet"))
    assert found == [1, 5, 1], "the last one was kept"
    run(
        run_episodes(
            plans,
            JudgeEvaluator(
                ScriptedClient(lambda request: marks(2), "scripted/strict"), temperature=0.5
            ),
            tmp_path,
        )
    )
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_an_unjudged_episode_is_not_kept(tmp_path):
    plans = [_EpisodePlan(bargain(0), {"Piet": "buyer", "Hanne": "seller"})]
    run(run_episodes(plans, JudgeEvaluator(ScriptedClient(lambda request: "?")), tmp_path))
    assert list(tmp_path.glob("*.parquet")) == []


def test_sotopia_logs_round_trip_and_have_its_fields():
    episode = run(
        run_episode(
            party(),
            {
                "Ada": ScriptedAgent('Say "x": y', Action("action", "sits")),
                "Bo": ScriptedAgent(Action("leave")),
            },
            lambda e: {},
        )
    )
    log = json.loads(json.dumps(to_sotopia(episode, "trial")))
    back = from_sotopia(log)
    assert [(e.agent, str(e.action)) for e in back.events] == [
        (e.agent, str(e.action)) for e in episode.events
    ]
    assert [(r.name, r.goal, r.about, r.secret) for r in back.scenario.roles] == [
        (r.name, r.goal, r.about, r.secret) for r in party().roles
    ]
    assert len(log["rewards"]) == len(log["agents"]) and all(
        len(triple) == 3 for turn in log["messages"] for triple in turn
    )


@pytest.mark.parametrize("kind", KINDS[1:4])
def test_actions_need_an_argument(kind):
    with pytest.raises(DataError, match="needs an argument"):
        Action(kind)


def test_every_role_needs_an_agent():
    with pytest.raises(DataError, match="No agent for Bo"):
        run(run_episode(party(), {"Ada": ScriptedAgent()}))


# ---- by their published names


@pytest.mark.parametrize(
    "kind, argument, said",
    [
        ("none", "", "did nothing"),
        ("speak", 'A "word".', 'said: "A "word"."'),
        ("non-verbal communication", "nods", "[non-verbal communication] nods"),
        ("action", "sits: down", "[action] sits: down"),
        ("leave", "", "left the conversation"),
    ],
)
def test_actions_are_rendered_and_written_with_the_published_fields(kind, argument, said):
    event = _EpisodeEvent(3, "Ada", Action(kind, argument))
    assert str(event.action) == said
    assert event.published() == {
        "agent_name": "Ada",
        "output_channel": "everybody",
        "action_type": kind,
        "argument": argument,
    }


def test_whispers_keep_their_listeners_and_thoughts_stay_private():
    event = _EpisodeEvent(0, "Ada", Action("speak", "Psst.", "SECRET", ("Bo", "Cy")))
    written = event.published()
    assert written["output_channel"] == "Bo, Cy" and "SECRET" not in json.dumps(written)


def test_memory_items_of_a_record_count_its_timesteps():
    record = make_context(
        ["Ada", "Bo"],
        [
            ("Rain.", {"Ada": "<same_as_state />"}, {"Ada": "sings"}),
            ("none", {"Bo": "<same_as_last_action />"}, {}),
        ],
    )
    for step, name in zip(record.steps, ("step 4", "dusk")):
        step.timestep = name
    found = _observations(record)
    assert [(item.last_turn, item.turn_number) for item in found["Ada"]] == [
        ("Rain.", 4),
        ("Ada sings", 0),
    ]
    assert str(found["Bo"][0]) == "Ada sings\n" and found["Bo"][0].available_actions == KINDS


def test_nobody_is_asked_where_nothing_is_possible():
    asked = []
    view = AgentView(party().roles[0], "A kitchen.", {"Bo": ""}, (), 0, 20, 0, ("none",))
    action = run(
        _Foresight(lambda *words: asked.append(words), lambda record: asked.append(record))(view)
    )
    assert action.kind == "none" and asked == []
