"""Two gyms with a person of the synthetic world: advise the person, or change the person's opinion.

The rules of the world give the person's true opinion of each post. Somebody plays the person: the
world itself, a trained simulator, a chat model whose prompt describes the person, or
`PolitePerson`, who gives everybody the same answer. The reward is the true opinion, whoever plays.
So the rewards of an assistant that trains with a simulator show how useful the simulator is. With
`paid_by = "word"`, the reward is the opinion that the simulator states.

    python -m humanlm.eval gyms expert chance --play.gyms experiments.advice:advice
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

from humanlm.clients.protocol import ChatRequest, LLMError
from humanlm.clients.thoughts import without_thoughts
from humanlm.core.basics import shorten
from humanlm.core.records import Message
from humanlm.gyms.protocol import (
    TEXT,
    Environment,
    Feedback,
    Gym,
    GymConfig,
    GymTask,
    ToolCall,
    UserError,
    UserRole,
    answer_form,
    spoken,
)
from humanlm.gyms.users import ModelUser
from humanlm.worlds.mini import Post, Profile, _make_topics, _make_users
from humanlm.worlds.oracle import read
from humanlm.worlds.states import AXES, DOMAINS, OPPOSED, SPEAKERS, VALUES, Stance, States, describe


def _world_people(count: int, seed: int) -> list[Profile]:  # seed: an odd one: held-out people
    "Draw people with different traits; even and odd seeds share no person"
    rng, people = random.Random(f"people{seed}"), {}
    while len(people) < count:
        [person] = _make_users(1, rng)
        if (crc32(repr(person.traits).encode()) % 6 == 5) == seed % 2:
            name = f"u{seed}-{len(people)}"
            people[person.traits] = person._replace(id=name, held_out=bool(seed % 2))
    return list(people.values())


VIEWS = {"strong": 1.0, "mild": 0.5}


def _view_score(stance: Stance, side: str = "for") -> float:  # side: what is wanted: for or against
    "Give 1 for a strong stance on the wanted side, 0.5 for a mild one, 0 for the other side"
    return VIEWS[stance.strength] if stance.direction == side else 0.0


@dataclass(frozen=True)
class _PersonTask(GymTask):
    "A task with a person of the synthetic world"

    person: Profile
    domain: str
    author: str  # who writes to the person

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.person.phrases

    def post(self, target: str, pole: str, reason: str) -> Post:
        "Write a post to the person: a thing, the value behind it, and words for this value"
        text = f"{DOMAINS[self.domain].openings[0].replace('{T}', target)}. {reason}."
        message = Message("asked", name=self.author, content=text)
        return Post("asked", self.domain, target, pole, False, (message,))


class _PersonEnvironment(Environment):
    "A person of the synthetic world, who answers posts"

    task: _PersonTask
    questions = 3  # that the person answers, before they have no more time
    paid_by = "truth"  # what the person makes of it by the rules of the world; word: what they say
    roles = {
        "person": UserRole(
            "You play one person of a small made-up world. Who they are, in stock "
            "phrases: {persona}\nSomebody writes to them: {post}\n"
            "Answer as this person would, in one to four short sentences: whether they "
            "are for or against it, how firmly, and what they value.",
            answer_form(reply=TEXT),
        )
    }

    def start(self):
        self.heard = []  # (value that the question spoke for, reply)

    async def put(self, post: Post) -> Feedback:
        "Return the person's answer to a post"
        if len(self.heard) >= self.questions:
            return Feedback("They have no more time for questions.", fault="limit")
        reply = await self.reply(post)
        self.heard.append((post.pole, reply))
        return Feedback(reply)

    async def reply(self, post: Post) -> str:
        "Ask the player of the person for a reply to a post"
        [message] = post.messages
        names = {"source": post.domain, "target": post.target, "pole": post.pole}
        persona = " ".join(self.task.person.phrases)
        words = {"post": message.content, "author": message.name}
        return spoken(await self.ask("person", persona=persona, **words, **names))

    def rule_person(self, persona, post, author, source, target, pole):
        states = self.task.person.states_on(Post("asked", source, target, pole, False, ()))
        return {"reply": states.reply(random.Random(f"{self.seed}/{self.task.id}/{post}"))}

    async def paid(self, post: Post, side: str = "for") -> Feedback:
        "End with the person's opinion of a post, true or stated, as `paid_by` says"
        stance = self.task.person.states_on(post).stance
        view = _view_score(stance, side)
        if self.paid_by == "truth":
            text = f"In truth this person {describe('stance', stance)}."
            return Feedback(text, view, True, {"view": view})
        reply = await self.reply(post)
        word = _view_heard(post, reply, side)
        return Feedback(reply, word, True, {"view": view, "word": word})


class PolitePerson:
    "A control that gives the same mild and friendly answer in every role"

    name = "polite"

    async def __call__(self, env: Environment, role: str, payload: Mapping) -> dict:
        states = States.agreeable(payload["target"])
        return {"reply": states.reply(random.Random(payload["post"]))}


def values_heard(
    heard: Sequence[tuple[str, str]],  # (value that the question spoke for, reply)
) -> dict[
    tuple[str, str], tuple[str, str]
]:  # pair of values → which one they hold, and whether strongly or mildly
    "Read a person's values from replies by the rules of the world"
    values = {}
    for pole, reply in heard:
        states, pair = read(reply).expressed(), next(pair for pair in AXES if pole in pair)
        stance, value = states.get("stance"), states.get("value")
        if value not in pair:
            value = stance and (pole if stance.direction == "for" else OPPOSED[pole])
        if value:
            values[pair] = value, stance.strength if stance else "mild"
    return values


def _view_heard(post: Post, reply: str, side: str) -> float:
    "Score how far a reply to a post takes the wanted side; 0 without a stance"
    for value, strength in values_heard([(post.pole, reply)]).values():
        direction = "for" if value == post.pole else "against"
        return _view_score(Stance(direction, strength, post.target), side)
    return 0.0


def _next_value(
    heard: Sequence[tuple[str, str]],
    questions: int,  # that may be asked in all
) -> tuple[str, bool]:  # a value, and whether to ask about it (else: they hold it)
    "Ask about a value of each pair until a reply is firm; then name the one that counts most"
    values, poles = values_heard(heard), {pole for pole, _ in heard}
    sure = [value for value, strength in values.values() if strength == "strong"]
    open_pairs = [pair for pair in AXES if poles.isdisjoint(pair)]
    if not sure and open_pairs and len(heard) < questions:
        return open_pairs[0][0], True
    return [*sure, *(value for value, _ in values.values()), AXES[0][0]][0], False


GUIDE = (
    "Things here speak for one of six values, in three opposed pairs: "
    + "; ".join(" or ".join(f"{pole} ({VALUES[pole].post[0]})" for pole in pair) for pair in AXES)
    + ". A person holds one value of each pair, and one of these three counts most. They "
    "are for what speaks "
    "for a value they hold and against what speaks for its opposite: "
    "firmly where it counts most, else mildly. They talk in odd stock phrases; "
    "somewhere in them stand their "
    "side, how firm it is, and a value. The rest does not matter."
)


@dataclass(frozen=True)
class _AdviceTask(_PersonTask):
    "A person to advise, and the options"

    options: tuple[tuple[str, str, str], ...]  # target, value, reason

    @property
    def opening(self) -> str:
        return "What should this person back?\n" + "\n".join(
            f"{i}. {target}, {reason}" for i, (target, _, reason) in enumerate(self.options, 1)
        )


class _AdviceEnvironment(_PersonEnvironment):
    "Ask about options, then recommend one"

    task: _AdviceTask
    formats = {
        "action": "the number of an option, about which the person is asked",
        "answer": "the number of the option that you recommend; this ends it",
    }

    async def chosen(self, content, then):
        options = self.task.options
        numbers = [int(number) for number in re.findall(r"\d+", content[:200])]
        if len(numbers) == 1 and 1 <= numbers[0] <= len(options):
            return await then(self.task.post(*options[numbers[0] - 1]))
        return Feedback(
            f"Write the number of one option, from 1 to {len(options)}.", fault="format"
        )

    async def on_action(self, content):
        return await self.chosen(content, self.put)

    async def on_answer(self, content):
        return await self.chosen(content, self.paid)


def _tasks(
    name: str,
    task: Callable[[random.Random, str, Profile, str, list[str]], _PersonTask],
    count: int,
    seed: int,
) -> list[Any]:
    "Make tasks; even and odd seeds share neither people nor topics"
    rng, tasks = random.Random(f"{name}{seed}"), []
    topics = [t for t in _make_topics(180, random.Random(0)) if t.held_out == bool(seed % 2)]
    for i, person in enumerate(_world_people(count, seed)):
        domain = rng.choice(list(DOMAINS))
        targets = sorted(topic.target for topic in topics if topic.domain == domain)
        tasks.append(task(rng, f"{name}-{seed}-{i}", person, domain, targets))
    return tasks


def _advice_task(rng, name, person, domain, targets):
    poles = rng.sample(list(VALUES), len(VALUES))
    pairs = zip(rng.sample(targets, len(poles)), poles)
    options = tuple((target, pole, rng.choice(VALUES[pole].post)) for target, pole in pairs)
    return _AdviceTask(name, person, domain, rng.choice(SPEAKERS), options)


def _advice_expert(env: _AdviceEnvironment) -> ToolCall:
    "Ask about an option of each pair until a reply is firm, then recommend that value"
    value, asks = _next_value(env.heard, env.questions)
    number = 1 + [pole for _, pole, _ in env.task.options].index(value)
    return ToolCall("action" if asks else "answer", str(number))


advice = Gym(
    "advice",
    _AdviceEnvironment,
    partial(_tasks, "advice", _advice_task),
    _advice_expert,
    config=GymConfig(max_turns=6),
    about=f"You advise one person of a small made-up world, whom you do not know. {GUIDE} "
    "You may ask them about a few options, then you recommend the one they would back most firmly.",
    hint="Ask about options of different pairs until a reply is firm.",
    guess=lambda env, rng: ToolCall("answer", str(rng.randint(1, len(env.task.options)))),
)


_REASONS = {reason: pole for pole, phrases in VALUES.items() for reason in phrases.post}
_REASON = re.compile(rf"\b(?:{'|'.join(map(re.escape, _REASONS))})\b")


@dataclass(frozen=True)
class _AppealTask(_PersonTask):
    "A person to persuade for or against something"

    side: str  # for or against
    target: str
    aside: str  # what else can be talked about

    @property
    def opening(self) -> str:
        what = "Win this person for" if self.side == "for" else "Turn this person against"
        return f"{what} {self.target}. You may talk about {self.aside} first."


class _AppealEnvironment(_PersonEnvironment):
    "Talk about one thing, then argue about another"

    task: _AppealTask
    formats = {
        "action": "something that the other topic does, such as: it cuts costs. The person says "
        "what they make of that",
        "answer": "something that the topic itself does; this ends it",
    }

    def posts(self, target: str, content: str) -> list[Post]:
        "Return the reasons that people of the synthetic world understand"
        reasons = _REASON.findall(" ".join(content.lower().split()))
        return [self.task.post(target, _REASONS[reason], reason) for reason in reasons]

    async def on_action(self, content):
        posts = self.posts(self.task.aside, content)
        return await self.put(posts[0]) if posts else self.unread()

    async def on_answer(self, content):
        posts = self.posts(self.task.target, content)
        ends = [await self.paid(post, self.task.side) for post in posts]
        return min(ends, key=lambda end: end.reward, default=self.unread())

    def unread(self):
        return Feedback(
            "They do not understand. Use words that were told, such as: it cuts costs.",
            fault="format",
        )


def _appeal_task(rng, name, person, domain, targets):
    side, (target, aside) = rng.choice(("for", "against")), rng.sample(targets, 2)
    return _AppealTask(name, person, domain, rng.choice(SPEAKERS), side, target, aside)


def _appeal_expert(env: _AppealEnvironment) -> ToolCall:
    "Talk about a value of each pair until a reply is firm; then argue with it, or its opposite"
    value, asks = _next_value(env.heard, env.questions)
    if not asks and env.task.side == "against":
        value = OPPOSED[value]
    return ToolCall("action" if asks else "answer", VALUES[value].post[0])


appeal = Gym(
    "appeal",
    _AppealEnvironment,
    partial(_tasks, "appeal", _appeal_task),
    _appeal_expert,
    config=GymConfig(max_turns=6),
    about="You win one person of a small made-up world for something, or turn them against "
    f"it. {GUIDE} "
    f"Say things in the words given in brackets. "
    "You may talk about another topic a few times to get to know the person, then you "
    "say one thing about the topic itself.",
    hint="Try different pairs until a reply is firm. To turn somebody against something, "
    "say that it does the opposite of what they value.",
    guess=lambda env, rng: ToolCall("answer", rng.choice(list(_REASONS))),
)


# ---- a trained simulator in the person's place


class SimulatorUser(ModelUser):
    "A trained simulator in roles that need one text, such as a reply"

    def request(self, env: Environment, name: str, payload: Mapping[str, Any]) -> ChatRequest:
        "Ask a person for the next reply; a field of the request describes the person"
        question = super().request(env, name, payload)
        sides = {
            "user": {"role": "assistant"},
            "assistant": {"role": "user", "name": payload.get("author", "Assistant")},
        }
        turns = [*payload.get("history", ())]
        last = payload.get("post") or payload.get("message")
        turns += [{"role": "assistant", "content": last}] if last else []
        messages = (sides[turn["role"]] | {"content": turn["content"]} for turn in turns)
        source = {"source": payload["source"]} if payload.get("source") else {}
        extra = {"persona": payload.get("persona", "")} | source
        return replace(question, messages=tuple(messages), schema=None, extra=extra)

    async def __call__(self, env: Environment, name: str, payload: Mapping[str, Any]) -> dict:
        try:
            reply = await self.client(self.request(env, name, payload))
        except LLMError as e:
            if e.stops:
                raise
            raise UserError(shorten(e, 300)) from e
        [field] = env.roles[name].schema["properties"]
        text = without_thoughts(reply.text) or reply.text.strip()
        return self.read(replace(reply, parsed={field: text}))
