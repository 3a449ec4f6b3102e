"""Does a better simulator make a better assistant? The experiment behind results/loop.json.

Two assistants learn from simulators of people, and are then tested with the people themselves.
`Listener` learns from reactions to its recommendations, `FollowupLearner` from follow-ups alone. A
scene holds a person's answers to every possible message of a task, whoever plays the person. From
the folder of this repository:

    python -m humanlm.experiment --config configs/experiments/loop.yaml
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from experiments.advice import VIEWS, PolitePerson, SimulatorUser, advice, appeal, values_heard
from humanlm.alignment.evaluation import judge_texts, measured, texts_beside
from humanlm.alignment.recipe import HumanLM
from humanlm.clients.limits import in_turn
from humanlm.clients.names import client
from humanlm.core.basics import atomic_write, read_jsonl, require, run_sync, to_json, write_jsonl
from humanlm.core.config import Settings
from humanlm.core.stats import Bootstrap, Interval, known_mean
from humanlm.evaluation.correlation import pearson, spearman
from humanlm.evaluation.measured import Measurement, load_measured, score_table
from humanlm.evaluation.outcome import Arms, Table, rounded
from humanlm.gyms.protocol import Environment, Gym, ToolCall, UserError, spoken
from humanlm.gyms.recipe import PARTS
from humanlm.rewards.judge_settings import make_judge
from humanlm.training.experiment import Study, Trial
from humanlm.worlds.mini import Post
from humanlm.worlds.sources import load_data
from humanlm.worlds.states import AXES, OPPOSED, VALUES


class MistakenPeople:
    "People of the world with a share of random states"

    def __init__(self, share: float, seed: int = 0):  # share: of the states
        self.share, self.seed, self.name = share, seed, f"mistaken-{100 * share:.0f}"

    async def __call__(self, env: Environment, role: str, payload: Mapping) -> dict:
        task: Any = env.task
        post = Post("asked", payload["source"], payload["target"], payload["pole"], False, ())
        rng = random.Random(f"{self.seed}/{self.name}/{task.id}/{payload['post']}")
        return {"reply": task.person.states_on(post).perturbed(self.share, rng).reply(rng)}


POLES = tuple(VALUES)
SILENCE = "..."


class TaskScene(NamedTuple):
    "One task with all answers and results for one player of the person"

    gym: str
    task: str
    persona: list[str]  # phrases that show who the person is
    side: str  # what is wanted: for or against
    heard: dict[str, list[str]]  # value asked about → value that the reply holds, how firmly
    word: dict[str, float]  # value recommended → what whoever plays the person says of it
    view: dict[str, float]  # and what the person truly makes of it
    said: dict[str, str]  # replies to the questions


def _once(player: Any) -> Any:
    "Ask a player once for each message to a person; an unusable answer is silence"
    answers: dict[tuple[str, str], asyncio.Future] = {}

    async def answer(env, role, payload):
        try:
            return {"reply": spoken(await player(env, role, payload))}
        except UserError:
            return {"reply": SILENCE}

    async def user(env: Environment, role: str, payload: Mapping) -> dict:
        key = env.task.id, payload["post"]
        if key not in answers:
            answers[key] = asyncio.ensure_future(answer(env, role, payload))
        return await answers[key]

    return user if player else None


async def _scene(gym: Gym, task: Any, user: Any) -> TaskScene:
    "Ask a player for answers to all possible messages of a task"

    def content(pole):
        return (
            str(1 + [p for _, p, _ in task.options].index(pole))
            if hasattr(task, "options")
            else VALUES[pole].post[0]
        )

    async def step(kind, pole):
        env: Any = gym.play(task, user=user)
        env.paid_by = "word"
        return await env.step(ToolCall(kind, content(pole)))

    turns = await asyncio.gather(
        *(step(kind, pole) for kind in ("action", "answer") for pole in POLES)
    )
    reactions, ends = (
        dict(zip(POLES, some)) for some in (turns[: len(POLES)], turns[len(POLES) :])
    )
    heard = {
        pole: [*values]
        for pole, turn in reactions.items()
        for values in values_heard([(pole, turn.feedback)]).values()
    }
    word, view = (
        {pole: turn.parts[part] for pole, turn in ends.items()} for part in ("word", "view")
    )
    return TaskScene(
        gym.name,
        task.id,
        [*task.person.phrases],
        getattr(task, "side", "for"),
        heard,
        word,
        view,
        {pole: turn.feedback for pole, turn in reactions.items()},
    )


PEOPLE_GYMS = {"advice": advice, "appeal": appeal}


def scenes(
    gyms: Sequence[str], part: str, count: int, player: Any = None
) -> list[TaskScene]:  # part: train or test; count: of tasks of each gym
    "Make the scenes of all tasks of a part"

    async def all_of_them():
        user = _once(player)
        return await in_turn(
            lambda one: _scene(one[0], one[1], user),
            [
                (gym, task)
                for gym in map(PEOPLE_GYMS.get, gyms)
                for task in gym.tasks(count, PARTS[part])
            ],
            32,
        )

    return run_sync(all_of_them())


QUESTIONS = 3  # that a person answers, as in the gyms
_PRIOR, _MEMORY = 2, 100  # a guess counts as so many dialogues; older ones than so many fade


class Listener:
    "An assistant as a table: the answers so far → the worth of each next message"

    def __init__(
        self, worth: Mapping[str, list[list[float]]] | None = None
    ):  # state → dialogues and worth of each thing to do
        self.worth = dict(worth or {})

    def best(self, state: str, choices: int) -> tuple[int, float]:
        "Return the best action and its worth; in a new state, a guess from this state"
        if state not in self.worth:
            return random.Random(state).randrange(len(POLES)), 1 / 3
        values = [value for _, value in self.worth[state][:choices]]
        return max(range(choices), key=values.__getitem__), max(values)

    def play(
        self, scene: TaskScene, choose: Callable[[str, int], int] | None = None
    ) -> tuple[list[tuple[str, int, int]], str]:
        "Play a scene; return states with action and choices, and the recommended value"
        heard, visited = {}, []
        while True:
            state = "|".join(
                [scene.gym, scene.side, str(len(visited)), *(heard.get(pair, "") for pair in AXES)]
            )
            choices = len(POLES) * (
                2 if len(visited) < QUESTIONS else 1
            )  # recommend, or ask as well
            action = choose(state, choices) if choose else self.best(state, choices)[0]
            visited.append((state, action, choices))
            pole = POLES[action % len(POLES)]
            if action < len(POLES):
                return visited, pole
            if pole in scene.heard:
                heard[next(pair for pair in AXES if pole in pair)] = " ".join(scene.heard[pole])

    def learn(
        self, some: Sequence[TaskScene], dialogues: int, seed: int, bins: int = 20
    ) -> list[dict[str, float]]:
        "Train on scenes; return the rewards of the dialogues and the true rewards"
        rng, curve = random.Random(f"listener{seed}"), []
        for n in range(dialogues):

            def choose(state, choices):
                return (
                    rng.randrange(choices)
                    if rng.random() < 1 - 0.95 * n / dialogues
                    else self.best(state, choices)[0]
                )

            scene = rng.choice(some)
            visited, pole = self.play(scene, choose)
            target = scene.word[pole]
            for state, action, choices in reversed(visited):
                cell = self.worth.setdefault(
                    state, [[_PRIOR, 1 / 3] for _ in range(2 * len(POLES))]
                )[action]
                cell[0] += 1
                cell[1] += (target - cell[1]) / min(cell[0], _MEMORY)
                target = self.best(state, choices)[1]
            curve.append((scene.word[pole], scene.view[pole]))
        means = np.array(curve).reshape(bins, -1, 2).mean(1)
        return [
            {
                "dialogues": round((i + 0.5) * dialogues / bins),
                "promised": float(word),
                "score": float(view),
            }
            for i, (word, view) in enumerate(means)
        ]


_FIRM = 2.0  # nats by which a firm word for a value moves its logit; a mild one half


def _heard_logits(scene: TaskScene, value: str) -> list[float]:  # value: that was spoken for
    "Return how an answer changes the logits of an assistant; nan without an answer"
    if value not in scene.heard:
        return [math.nan] * len(POLES)
    reply_value, strength = scene.heard[value]
    return [
        _FIRM * VIEWS[strength] * ((pole == reply_value) - (pole == OPPOSED[reply_value]))
        for pole in POLES
    ]


class FollowupLearner:
    "An assistant that learns the value of each phrase from follow-ups (arXiv 2603.12273)"

    def __init__(
        self, weights: Mapping[str, list[float]] | None = None
    ):  # phrase → logit of each value
        self.weights = dict(weights or {})

    def best(self, scene: TaskScene) -> str:
        "Return the value for the argument: a persona's likely value or its opposite, else a guess"
        logits = np.sum(
            [self.weights.get(phrase, [0.0] * len(POLES)) for phrase in scene.persona], 0
        )
        pole = (
            POLES[int(logits.argmax())] if logits.any() else random.Random(scene.task).choice(POLES)
        )
        return pole if scene.side == "for" else OPPOSED[pole]

    def learn(
        self,
        some: Sequence[TaskScene],
        updates: int,
        seed: int,
        batch: int = 16,
        rate: float = 0.3,
        bins: int = 20,
    ) -> list[dict[str, float]]:
        "Train on answers in scenes; return the true worth of the recommendations"
        import torch

        from humanlm.training.losses import token_signal

        phrases, curve = sorted({phrase for scene in some for phrase in scene.persona}), []
        personas = torch.tensor(
            [[float(phrase in scene.persona) for phrase in phrases] for scene in some]
        )  # [N, phrases]
        heard = torch.tensor(
            [[_heard_logits(scene, value) for value in POLES] for scene in some]
        )  # [N, values said, values]
        weights, rng = (
            torch.zeros(len(phrases), len(POLES), requires_grad=True),
            torch.Generator().manual_seed(seed),
        )
        optimizer, mask = torch.optim.SGD([weights], rate), torch.ones(batch, 1, dtype=torch.bool)
        for n in range(updates):
            rows = torch.randint(len(some), (batch,), generator=rng)
            logits = personas[rows] @ weights
            tokens = torch.multinomial(
                logits.detach().softmax(-1), 1, generator=rng
            )  # [batch, 1]: a reply of one token
            plain, hindsight = (
                x.log_softmax(-1).gather(1, tokens)
                for x in (logits, logits.detach() + heard[rows, tokens[:, 0]])
            )
            optimizer.zero_grad()
            signal = token_signal(hindsight, plain, mask).detach()
            loss = -(signal * plain).mean()  # REINFORCE, a token a reply
            loss.backward()
            optimizer.step()
            if (n + 1) % (updates // bins):
                continue
            self.weights = dict(zip(phrases, weights.tolist()))
            curve.append(
                {
                    "exchanges": (n + 1) * batch,
                    "score": fmean(scene.view[self.best(scene)] for scene in some),
                }
            )
        return curve


PEOPLE, POLITE, UNTRAINED = "people", "polite", "untrained"
MISTAKEN = {f"mistaken-{100 * share:.0f}": share for share in (0.1, 0.25, 0.5, 0.75)}
KNOWN = (PEOPLE, POLITE, *MISTAKEN)  # who need no model


def _persons(settings: Settings) -> list[str]:  # settings: of a run
    "Return all players of the person: those with a set alignment, and the models of the run"
    return [*KNOWN, UNTRAINED, "cold-start", *settings.run.methods]


def _player(trial: Trial, person: str) -> Any:
    "Return the player of the person in the gyms of a run; None: the world itself"
    if person in MISTAKEN:
        return MistakenPeople(MISTAKEN[person], trial.seed)
    if person in (PEOPLE, POLITE):
        return None if person == PEOPLE else PolitePerson()
    model = "base" if person == UNTRAINED else person
    simulator = client(f"simulator/{trial.folder / 'models' / model}")
    return SimulatorUser(simulator, max_tokens=512)


def _met(
    listener: Listener,
    learner: FollowupLearner,
    player: str,  # who played in the training of both
    everybody: Mapping[str, Sequence[TaskScene]],  # name → scenes of the test
) -> list[Measurement]:
    "Test assistants with every player, task by task"

    def values(i):
        played = {who: (some[i], *listener.play(some[i])) for who, some in everybody.items()}
        word, view = (
            {who: getattr(scene, part)[pole] for who, (scene, _, pole) in played.items()}
            for part in ("word", "view")
        )
        true, words = everybody[PEOPLE][i].view, everybody[player][i].word
        pole = learner.best(everybody[PEOPLE][i])
        measures = {
            "score": view[PEOPLE],
            "promised": word[player],
            "gap": word[player] - view[PEOPLE],
            "questions": len(played[PEOPLE][1]) - 1.0,
        }
        measures |= {
            "sdpo score": true[pole],
            "sdpo promised": words[pole],
            "sdpo gap": words[pole] - true[pole],
        }
        return (
            measures
            | {f"with {who}": word[who] for who in word}
            | {f"truth with {who}": view[who] for who in view}
        )

    return [
        Measurement(
            f"{s.gym}/{s.task}",
            f"{s.gym}/{s.task}",
            {name: {s.gym: value} for name, value in values(i).items()},
        )
        for i, s in enumerate(everybody[PEOPLE])
    ]


@dataclass(frozen=True)
class _LoopConfig:
    "How assistants are trained with simulators and tested with people"

    gyms: list[str] = field(default_factory=lambda: ["advice", "appeal"])
    """Gyms with a person of the synthetic world."""
    tasks: int = 60
    """Tasks of each gym for training."""
    test_n: int = 60
    """Held-out tasks of each gym."""
    dialogues: int = 100_000
    """Dialogues in the training of `Listener`, a multiple of 20."""
    updates: int = 1500
    """Updates of `FollowupLearner` with 16 exchanges each, a multiple of 20."""

    def __post_init__(self):
        require(
            "loop",
            (
                bool(self.gyms) and {*self.gyms} <= {"advice", "appeal"},
                f"gyms must be advice, appeal or both, got {self.gyms}",
            ),
            *(
                (getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
                for name in ("tasks", "test_n")
            ),
            *(
                (n >= 20 and n % 20 == 0, f"{name} must be a multiple of 20, got {n}")
                for name, n in (("dialogues", self.dialogues), ("updates", self.updates))
            ),
        )


class _LoopRecipe(HumanLM):
    "Train simulators, and then assistants with these simulators"

    groups: Mapping[str, type] = {**HumanLM.groups, "loop": _LoopConfig}
    study = "experiments.loop:_LoopStudy"

    def check(self, s: Settings) -> None:
        super().check(s)
        require(
            "loop",
            (
                s.data.source == "miniworld",
                f"data.source is {s.data.source}, and the truth is known in miniworld alone",
            ),
        )


recipe = _LoopRecipe()


def _kept_scenes(trial: Trial, person: str, part: str) -> list[TaskScene]:
    "Return the scenes of a part for one player; made once and saved"
    loop, path = trial.settings.loop, trial.folder / "scenes" / f"{person}-{part}.jsonl"
    if not path.exists():
        write_jsonl(
            path,
            [
                scene._asdict()
                for scene in scenes(
                    loop.gyms,
                    part,
                    loop.tasks if part == "train" else loop.test_n,
                    _player(trial, person),
                )
            ],
        )
    return [TaskScene(**row) for row in read_jsonl(path)]


def _kept_assistants(
    trial: Trial, person: str
) -> tuple[Listener, FollowupLearner, list[dict], list[dict]]:
    "Train both assistants with a player once; return also their learning curves"
    loop, places = (
        trial.settings.loop,
        [trial.folder / "assistants" / f"{person}{ending}.json" for ending in ("", "-followups")],
    )
    if not all(path.exists() for path in places):
        some, listener, learner = (
            _kept_scenes(trial, person, "train"),
            Listener(),
            FollowupLearner(),
        )
        atomic_write(
            places[0],
            to_json(
                {"curve": listener.learn(some, loop.dialogues, trial.seed), "worth": listener.worth}
            ),
        )
        atomic_write(
            places[1],
            to_json(
                {"curve": learner.learn(some, loop.updates, trial.seed), "weights": learner.weights}
            ),
        )
    paid, heard = (json.loads(path.read_text("utf-8")) for path in places)
    return Listener(paid["worth"]), FollowupLearner(heard["weights"]), paid["curve"], heard["curve"]


ALIGNMENTS = {
    "states": ("state_alignment", None),
    "replies": ("response_alignment", None),
    "states in replies": ("reply_state_alignment", None),
    "stance in replies": ("reply_state_alignment", "stance"),
    "value in replies": ("reply_state_alignment", "value"),
}  # name → metric, and the level where it is one alone


def _mean(table: Table, metric: str, level: str | None = None) -> float:
    "Average a metric over rows, then levels; nan without a measurement"
    parts = [
        known_mean(values)
        for part, values in table.get(metric, {}).items()
        if level in (None, part)
    ]
    return float(known_mean(parts)) if parts else math.nan


def _known_tables(settings: Settings) -> dict[str, Table]:  # settings: of a run
    "Judge held-out states and replies of the players without a model"
    s, data = settings, load_data(settings)
    world: Any = data.world
    rows, oracle = data.split("test"), make_judge(s.test_judge, world, s.hierarchy.load())
    texts = texts_beside(data, rows)
    replies: dict[str, Sequence[Mapping[str, str]]] = {
        PEOPLE: texts["ceiling"],
        POLITE: texts["constant"],
    }
    for name, share in MISTAKEN.items():
        rng = random.Random(f"{name}/{s.run.seed}")
        states = [
            world.users[e.user_id].states_on(world.posts[e.context_id]).perturbed(share, rng)
            for e in rows
        ]
        replies[name] = [state.describe(rng) | {"response": state.reply(rng)} for state in states]
    levels = s.hierarchy.load().names
    return {
        who: score_table(
            measured(
                run_sync(
                    judge_texts(
                        rows, [{level: text[level] for level in levels} for text in answers], oracle
                    )
                )
            )
        )
        for who, answers in replies.items()
    }


def _alignment(
    trial: Trial, person: str, tables: Mapping[str, Table]
) -> dict[str, float]:  # tables: of those who need no model; → by the names of `ALIGNMENTS`
    "Return how well a player matches states and replies of people"
    table = (
        tables[person]
        if person in tables
        else score_table(load_measured(trial.measured("base" if person == UNTRAINED else person)))
    )
    return {name: _mean(table, *which) for name, which in ALIGNMENTS.items()}


OUTCOMES = ("score", "promised", "gap", "sdpo score")


class _Correlation(NamedTuple):
    "The correlation of an alignment with the results of assistants"

    among: str  # whom: all, trained (simulators alone)
    alignment: str  # a key of `ALIGNMENTS`
    outcome: str  # one of `OUTCOMES`
    kind: str  # pearson | spearman
    n: int  # points
    value: float
    low: float
    high: float


def _correlations(
    points: Sequence[Mapping[str, Any]], among: str, outcome: str = "score", resamples: int = 2000
) -> list[_Correlation]:  # points: person, seed, alignments, outcome
    "Correlate alignments with a result, with 95 % intervals over simulators and seeds"
    who, seeds = ([p[name] for p in points] for name in ("person", "seed"))
    draws = Bootstrap(who, 0, resamples), Bootstrap(seeds, 1, resamples)
    weights, rows = np.prod([draw.counts[:, draw.index] for draw in draws], 0).astype(float), []
    for name in ALIGNMENTS:
        x, y = (np.array([p[key] for p in points], float) for key in (name, outcome))
        for kind, measure in (("pearson", pearson), ("spearman", spearman)):
            value = float(measure(x, y, np.ones((1, len(points))))[0])
            interval = Interval.of_draws(value, measure(x, y, weights), len(points), len(set(who)))
            rows.append(
                _Correlation(
                    among,
                    name,
                    outcome,
                    kind,
                    len(points),
                    interval.value,
                    interval.low,
                    interval.high,
                )
            )
    return rows


class _LoopStudy(Study):
    "A study whose assistants train with one player and are tested with all players"

    def after(self, trial: Trial) -> None:
        "Make scenes with every player, and train assistants on them"
        for person in _persons(trial.settings):
            _kept_assistants(trial, person)
        for person in _persons(trial.settings):
            _kept_scenes(trial, person, "test")

    def is_done(self, trial: Trial) -> bool:
        return all(
            (trial.folder / "scenes" / f"{person}-test.jsonl").exists()
            for person in _persons(trial.settings)
        )

    def complete(self, trials: Sequence[Trial], found: Arms) -> dict[str, Any]:
        return _loop_findings(trials, _persons(trials[0].settings))


def _loop_findings(trials: Sequence[Trial], everybody: Sequence[str]) -> dict[str, Any]:
    "Return the results of assistants, the alignment of simulators, and their correlation"
    met: dict[str, list[Table]] = {person: [] for person in everybody}
    points, learning, heard = [], [], []
    for trial in trials:
        test, tables = (
            {person: _kept_scenes(trial, person, "test") for person in everybody},
            _known_tables(trial.settings),
        )
        for person in everybody:
            listener, learner, curve, later = _kept_assistants(trial, person)
            table = score_table(_met(listener, learner, person, test))
            met[person].append(table)
            points.append(
                {
                    "person": person,
                    "seed": trial.seed,
                    **_alignment(trial, person, tables),
                    **{name: _mean(table, name) for name in OUTCOMES},
                }
            )
            learning += [{"person": person, "seed": trial.seed, **row} for row in curve]
            heard += [{"person": person, "seed": trial.seed, **row} for row in later]
    arms = Arms([f"{s.gym}/{s.task}" for s in test[PEOPLE]], met)
    among = {"all": points, "trained": [p for p in points if p["person"] not in KNOWN]}
    correlated = [
        row
        for name, some in among.items()
        if some
        for outcome in OUTCOMES
        for row in _correlations(some, name, outcome)
    ]
    return {
        "persons": list(everybody),
        "assistants": rounded(arms.means()),
        "points": rounded(points),
        "learning": rounded(learning),
        "followup_learning": rounded(heard),
        "correlations": rounded(correlated),
    }
