"Episodes: what reaches whom, what a failed prediction does, and how they end"

import asyncio
import json

import pytest

from humanlm.clients.client import ScriptedClient
from humanlm.clients.protocol import LLMError
from humanlm.social.episodes import (
    Action,
    ChatAgent,
    Foresight,
    Role,
    run_episode,
)


def run(coroutine):
    return asyncio.run(coroutine)


def say(text="Hm.", thought="", kind="speak"):
    return json.dumps({"thought": thought, "type": kind, "argument": text})


def party(n=2):
    return "A kitchen.", tuple(
        Role(name, f"GOAL-{name}", f"about {name}", f"SECRET-{name}")
        for name in ("Ada", "Bo", "Cy")[:n]
    )


def script(*actions, views=None):
    "An agent that says what it was given, and then nothing"
    rest = [Action("speak", a) if isinstance(a, str) else a for a in actions]

    async def act(role, record):
        if views is not None:
            views.append(record)
        return rest.pop(0) if rest else Action()

    return act


GUESS = json.dumps(
    {
        "timestep": "1",
        "state": "none",
        "observations": ["Ada: none", "Bo: <mental_state>I am moved</mental_state>"],
        "actions": ["Bo: nods"],
    }
)


def test_nothing_private_of_others_reaches_any_prompt():
    "Aims, secrets, thoughts and whispers of others are in no request of agent or world model"
    clients = {
        name: ScriptedClient(lambda request, name=name: say(f"PUBLIC-{name}", f"THOUGHT-{name}"))
        for name in ("Ada", "Bo", "Cy")
    }
    worlds = {
        name: ScriptedClient(lambda request: LLMError("bad answer", "no")) for name in clients
    }
    cast = {name: Foresight(ChatAgent(clients[name]), worlds[name]) for name in clients}
    episode = run(run_episode(*party(3), cast, max_turns=9))
    assert [action.kind for _, action in episode] == ["speak"] * 9
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
        assert all(f"PUBLIC-{other}" in asked for other in others)


def test_refinement_is_used_and_sees_the_prediction():
    actor, world = ScriptedClient([say("draft"), say("refined")]), ScriptedClient([GUESS])
    cast = {"Ada": Foresight(ChatAgent(actor), world), "Bo": script()}
    episode = run(run_episode(*party(), cast, max_turns=1))
    assert str(episode[0][1]) == 'said: "refined"'
    assert "I am moved" in json.dumps(actor.requests[1].messages)
    assert "draft" in json.dumps(world.requests[0].messages)


def test_an_unusable_answer_loses_the_turn_and_an_outage_ends_the_episode():
    model = ScriptedClient(["…", "…", say("Yes.")])
    episode = run(run_episode(*party(), {"Ada": ChatAgent(model), "Bo": script("Hm.")}, 3))
    assert [action.kind for _, action in episode] == ["none", "speak", "speak"]
    assert "lost turn" in episode[0][1].note
    down = ChatAgent(ScriptedClient(lambda request: LLMError("auth", "no such key")))
    with pytest.raises(LLMError):
        run(run_episode(*party(), {"Ada": down, "Bo": script()}))
