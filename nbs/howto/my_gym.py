"""A gym of one's own: find out what a guest would like, and serve it.

`humanlm train --run.recipe gyms --gyms.train '["my_gym:gym"]'`"""

import random
from dataclasses import dataclass

from humanlm.gyms.protocol import Environment, Feedback, Gym, GymTask, ToolCall, UserRole

DRINKS = {
    "cocoa": "hot and sweet",
    "tea": "hot and plain",
    "lemonade": "cold and sweet",
    "water": "cold and plain",
}
QUESTIONS = ("hot or cold?", "sweet or plain?")


@dataclass(frozen=True)
class GuestTask(GymTask):
    name: str
    drink: str

    @property
    def opening(self):
        return f"{self.name} is thirsty."

    @property
    def secrets(self):
        return (DRINKS[self.drink],)


class BarEnvironment(Environment):
    formats = {
        "action": f"a question to the guest, such as: {QUESTIONS[0]}",
        "answer": f"what you serve: {', '.join(DRINKS)}. This ends it",
    }
    roles = {
        "guest": UserRole(
            "You are a guest, and you would like something {wish}. You are asked: {question}\n"
            "Answer in a few words, and only what you are asked.",
            {"type": "object", "properties": {"reply": {"type": "string"}}, "required": ["reply"]},
        )
    }

    def rule_guest(self, wish, question):
        asked = [
            word
            for options, word in zip(QUESTIONS, wish.split(" and "))
            if any(option in question.lower() for option in options.strip("?").split(" or "))
        ]
        return {
            "reply": f"{asked[0].capitalize()}, please."
            if len(asked) == 1
            else "One thing at a time, please."
        }

    async def on_action(self, content):
        return Feedback(
            (await self.ask("guest", wish=DRINKS[self.task.drink], question=content))["reply"]
        )

    async def on_answer(self, content):
        if content not in DRINKS:
            return Feedback(f"We have {', '.join(DRINKS)}.", fault="format")
        return Feedback(
            "Thank you!" if content == self.task.drink else "No, thank you.",
            float(content == self.task.drink),
            done=True,
        )


def tasks(count, seed):
    "Training plays even seeds and evaluation odd ones: they share no guest"
    rng, guests = (
        random.Random(f"bar/{seed}"),
        ("Ada", "Bo", "Cleo", "Dan") if seed % 2 == 0 else ("Eve", "Finn", "Gus", "Hana"),
    )
    return [
        GuestTask(f"bar-{seed}-{n}", rng.choice(guests), rng.choice(list(DRINKS)))
        for n in range(count)
    ]


def expert(env):
    told = " ".join(turn.feedback.lower() for turn in env.turns)
    open_questions = [
        question
        for question in QUESTIONS
        if not any(f"{option}, please" in told for option in question.strip("?").split(" or "))
    ]
    return (
        ToolCall("action", open_questions[0])
        if open_questions
        else ToolCall("answer", env.task.drink)
    )


def guess(env, rng):
    return rng.choice(
        [
            *(ToolCall("action", question) for question in QUESTIONS),
            *(ToolCall("answer", drink) for drink in DRINKS),
        ]
    )


gym = Gym(
    "bar",
    BarEnvironment,
    tasks,
    expert,
    guess=guess,
    about="You wait on a guest who would like one of four drinks: "
    + "; ".join(f"{drink} ({wish.replace(' and ', ', ')})" for drink, wish in DRINKS.items())
    + ".",
)
