"""The larger checks of the synthetic world; the cheap ones stand on its pages, nbs/worlds/01 to
04."""

import hashlib
import random
import subprocess
import sys
import time
from statistics import mean

import pytest

from humanlm.core.basics import read_jsonl, write_jsonl
from humanlm.core.records import Example, from_dict
from humanlm.data.dataset import check_leakage
from humanlm.worlds.mini import WorldConfig, make_world, needed_phrases
from humanlm.worlds.oracle import (
    read,
    score_reply,
    score_state,
)
from humanlm.worlds.states import (
    BELIEFS,
    GOALS,
    STANCES,
    STATE_LEVELS,
    VALUES,
    describe,
)

TABLES = {"belief": BELIEFS, "value": VALUES, "goal": GOALS}


@pytest.fixture(scope="module")
def world():
    return make_world()


@pytest.fixture(scope="module")
def train(world):
    return [e for e in world.examples if e.split == "train"]


# 1. one world per seed


def test_same_seed_same_world_in_another_process(world):
    code = "from humanlm.worlds.mini import make_world; print(make_world().fingerprint)"
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {world.fingerprint}


def test_texts_of_seed_0_never_change(world):
    texts = [u.persona.text for u in world.users.values()] + [
        m.content for p in world.posts.values() for m in p.messages
    ]
    texts += [r.text for r in world.replies.values()]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "b4fc4fa514a24a97"


def test_seeds_differ_and_generation_is_fast():
    start = time.process_time()
    worlds = [make_world(WorldConfig(seed=seed)) for seed in range(3)]
    assert (time.process_time() - start) / 3 < 5
    assert len({w.fingerprint for w in worlds}) == 3


# 2. the lexicon


# 3. the truth in any wording


def test_any_wording_of_the_truth_scores_one(world, train):
    rng = random.Random(3)
    for e in train[:200]:
        for level, state in zip(STATE_LEVELS, world.replies[e.id].states):
            assert {
                score_state(level, e.states[level], describe(level, state, rng)).value
                for _ in range(10)
            } == {1.0}


def test_the_truth_may_be_given_as_a_reply(world, train):
    for e in train[:200]:
        for level, state in read(e.reply).expressed().items():
            assert score_state(level, e.reply, describe(level, state)).value == 1


# 4. stances


@pytest.mark.parametrize("truth", list(STANCES))
def test_stance_scores(truth):
    direction, strength = truth.split("/")
    other = {"for": "against", "against": "for", "strong": "mild", "mild": "strong"}

    def say(key, target="the night tram", prefix=""):
        return prefix + " ".join(STANCES[key].state[1].replace("{T}", target).split())

    def score(text):
        return score_state("stance", say(truth), text).value

    assert score(say(truth)) == 1
    assert score(say(f"{direction}/{other[strength]}")) == pytest.approx(0.7)
    assert score(say(f"{other[direction]}/{strength}")) == 0
    assert score(say(truth) + " and " + say(f"{other[direction]}/{strength}")) == 0
    assert score(say(truth, prefix="never ")) == 0
    assert 0 < score(say(truth, target="")) <= 0.4
    assert score(say(truth, target="the city market")) == 0


# 5. listing does not pay


@pytest.mark.parametrize("level", list(TABLES))
def test_listing_everything_scores_zero(level):
    for form in (", ".join, ". ".join):
        assert (
            score_state(
                level,
                TABLES[level][next(iter(TABLES[level]))].state[1],
                form(r.state[0] for r in TABLES[level].values()),
            ).value
            == 0
        )


def test_two_guesses_pay_less_than_one():
    one, two = [], []
    for _truth, row in VALUES.items():
        for a in VALUES:
            one.append(score_state("value", row.state[0], VALUES[a].state[1]).value)
            two += [
                score_state(
                    "value", row.state[0], f"{VALUES[a].state[1]}, {VALUES[b].state[1]}"
                ).value
                for b in VALUES
                if b != a
            ]
    assert mean(one) == pytest.approx(1 / 6)
    assert mean(two) == pytest.approx(4 / 5 * 0.4 / 3)


# 6. faults


# 7. replies


def test_reply_scores_follow_the_states(world, train):
    rng = random.Random(7)
    assert {score_reply(e.reply, e.reply, e.states).value for e in train} == {1.0}
    again = mean(
        score_reply(e.reply, world.replies[e.id].states.reply(rng), states=e.states).value
        for e in train[:1000]
    )

    def target(e):
        return world.posts[e.context_id].target

    def other(e, o):
        return o.reply.replace(target(o), target(e))

    stranger = mean(
        score_reply(e.reply, other(e, rng.choice(train)), states=e.states).value
        for e in train[:1000]
    )
    assert again > 0.9 and 0.15 < stranger < 0.25


# 8. silence never pays much


# 9. ceiling and chance


# 10. splits


@pytest.mark.parametrize("seed", range(3))
def test_splits(seed):
    world = make_world(WorldConfig(seed=seed))
    rows = world.examples
    held = {u.id for u in world.users.values() if u.held_out}
    assert len(held) == 40 and sum(t.held_out for t in world.topics) == 36
    assert check_leakage(rows) == []
    train = [e for e in rows if e.split == "train"]
    assert len(train) >= 3700 and sum(e.split == "test" for e in rows) >= 150
    traits = {world.users[e.user_id].traits for e in train}
    seen = {world.posts[e.context_id].target for e in train}
    for e in rows:
        target = world.posts[e.context_id].target
        if e.split == "test":
            assert world.users[e.user_id].traits not in traits
        if e.split != "train":
            assert target not in seen and set(target.split()) <= {
                w for t in seen for w in t.split()
            }
        if e.split != "train":
            assert e.order > max(row.order for row in train[-5:])


@pytest.mark.parametrize(
    "size",
    [
        dict(users=12, replies_per_user=6),
        dict(users=13),
    ],
)
def test_small_and_odd_worlds(size):
    world = make_world(WorldConfig(**size))
    assert {e.split for e in world.examples} >= {"train"} and check_leakage(world.examples) == []


def test_examples_survive_a_file(world, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", world.examples[:50])
    assert [from_dict(Example, d) for d in read_jsonl(path)] == world.examples[:50]


# 11. arithmetic and cost


@pytest.mark.parametrize(
    "text",
    [
        "<",
        "no way to the night tram ",
        "the night ",
        "a'",
        "the ",
        "not ",
        "saving ought to come ",
        "é",
        "\n",
    ],
)
def test_reading_is_linear(text):
    def seconds(n):
        start = time.process_time()
        read(text * (n // len(text)))
        return time.process_time() - start

    small, large = (min(seconds(n) for _ in range(3)) for n in (50_000, 1_000_000))
    assert large < 20 * 8 * small + 0.1  # quadratic: 400 times


# 12. stored text


# copying, wordings, needs


def test_needed_phrases_decide_the_state(world):
    "Replacing every other trait never changes the state of a level"
    rng, users, posts = random.Random(5), list(world.users.values()), list(world.posts.values())
    for _ in range(300):
        a, b, post = rng.choice(users), rng.choice(users), rng.choice(posts)
        for level in STATE_LEVELS:
            keep = needed_phrases(level, a, post)
            flat, other = (*a.traits.values, *a.traits[1:]), (*b.traits.values, *b.traits[1:])
            mixed = [x if i in keep else y for i, (x, y) in enumerate(zip(flat, other))]
            if keep[0] < 3:
                mixed[:3] = flat[:3]
            mixed = a._replace(traits=type(a.traits)(tuple(mixed[:3]), *mixed[3:]))
            assert getattr(mixed.states_on(post), level) == getattr(a.states_on(post), level)
