"""The larger checks of the synthetic world; the cheap ones stand on its pages, nbs/worlds/01 to 04."""

import hashlib
import random
import re
import subprocess
import sys
import time
from statistics import mean

import pytest

from humanlm.core.basics import ConfigError, DataError, read_jsonl, write_jsonl
from humanlm.data.records import Example, from_dict
from humanlm.data.splits import check_leakage, split_by_context
from humanlm.worlds.mini import WorldConfig, make_world, needed_phrases
from humanlm.worlds.oracle import (
    _baselines,
    copied_share,
    score_reply,
    score_reply_states,
    score_state,
)
from humanlm.worlds.reading import SLOTS, _lexicon, read
from humanlm.worlds.states import (
    BELIEFS,
    DOMAINS,
    EMOTIONS,
    FEELS,
    GOALS,
    OPPOSED,
    STANCES,
    STATE_LEVELS,
    VALUES,
    States,
    describe,
)

TABLES = {"belief": BELIEFS, "value": VALUES, "goal": GOALS}


@pytest.fixture(scope="module")
def world():
    return make_world()


@pytest.fixture(scope="module")
def train(world):
    return [e for e in world.examples if e.split == "train"]


def clip(x):
    return min(1.0, max(0.0, x))


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


def test_sizes(world):
    assert (len(world.users), len(world.topics), len(world.posts), len(world.replies)) == (
        240,
        180,
        540,
        5760,
    )
    lengths = [len(r.text.split()) for r in world.replies.values()]
    assert 28 < mean(lengths) < 33 and max(lengths) <= 48


# 2. the lexicon


def test_targets_are_recognised_inside_every_stance_phrase():
    targets = [f"the {m} {n}" for d in DOMAINS.values() for m in d.modifiers for n in d.nouns]
    for key, row in STANCES.items():
        for phrase in row.state + row.reply:
            for target in targets:
                assert [i[:3] for i in read(phrase.replace("{T}", target)).items] == [
                    ("stance", key, target)
                ]


def test_persona_and_post_phrases_are_unknown_to_the_oracle():
    from humanlm.worlds import states as grammar

    tables = [
        t
        for t in vars(grammar).values()
        if isinstance(t, dict) and all(isinstance(r, grammar._Phrases) for r in t.values())
    ]
    shown = {p for t in tables for row in t.values() for p in row.persona + row.post}
    assert len(tables) == 10 and not shown & set(_lexicon())
    assert all(not read(p).items for p in shown)


# 3. the truth in any wording


def test_any_wording_of_the_truth_scores_one(world, train):
    rng = random.Random(3)
    for e in train[:200]:
        for level, state in zip(STATE_LEVELS, world.reply(e.id).states):
            assert {
                score_state(level, e.states[level], describe(level, state, rng)).value
                for _ in range(10)
            } == {1.0}


def test_ten_wordings_of_any_state_have_one_score():
    rng = random.Random(4)
    for _ in range(200):
        truth, guess = States.uniform("the night tram", rng), States.uniform("the city market", rng)
        for level, a, b in zip(STATE_LEVELS, truth, guess):
            assert (
                len(
                    {
                        round(
                            score_state(
                                level, describe(level, a, rng), describe(level, b, rng)
                            ).value,
                            9,
                        )
                        for _ in range(10)
                    }
                )
                == 1
            )


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


def test_listing_all_emotions_scores_zero():
    text = "very " + " and ".join(r.state[0] for r in EMOTIONS.values()) + " about the night tram"
    for kind in EMOTIONS:
        assert (
            score_state(
                "emotion", f"deeply {EMOTIONS[kind].state[1]} about the night tram", text
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


def test_posts_lists_and_repetitions_as_replies(train):
    everything = " ".join(
        r.reply[0].replace("{T}", "the night tram") for t in SLOTS.values() for r in t.values()
    )
    for e in train[:300]:
        post = e.context[0].content
        assert score_reply(e.reply, post, post).reason == "copied context"
        assert score_reply(e.reply, post).value == 0
        assert {
            score_state(level, e.states[level], post, post).value for level in STATE_LEVELS
        } == {0}
        assert score_reply(e.reply, everything, states=e.states).value == 0
        assert {score_reply(e.reply, text).value for text in ("", " \n", "...", "<>", "42")} == {0}
    assert mean(
        score_reply(e.reply, f"{e.reply} {e.reply}", states=e.states).value for e in train[:1000]
    ) == pytest.approx(0.49, abs=0.02)


# 7. replies


def test_reply_scores_follow_the_states(world, train):
    rng = random.Random(7)
    assert {score_reply(e.reply, e.reply, e.context[0].content, e.states).value for e in train} == {
        1.0
    }
    again = mean(
        score_reply(e.reply, world.reply(e.id).states.reply(rng), states=e.states).value
        for e in train[:1000]
    )

    def target(e):
        return world.post(e.context_id).target

    def other(e, o):
        return o.reply.replace(target(o), target(e))

    stranger = mean(
        score_reply(e.reply, other(e, rng.choice(train)), states=e.states).value
        for e in train[:1000]
    )
    assert again > 0.9 and 0.15 < stranger < 0.25


def test_replies_read_back_to_their_states(world):
    for r in world.replies.values():
        said = read(r.text).expressed()
        assert {"stance", "value", "goal", "communication"} <= set(said)
        assert all(getattr(r.states, level) == state for level, state in said.items())
        assert read(r.text).unexplained == 0


# 8. silence never pays much


def variants(reply, level, state):
    "The reply without its sentence on one level, and with each other key said instead"
    phrase = next(p for p in TABLES[level][state].reply if re.search(rf"(^|[,.?] ){p}[.?]", reply))
    silent = re.sub(rf" {phrase}[.?]", "", reply)
    return silent, {
        key: reply.replace(phrase, row.reply[0])
        for key, row in TABLES[level].items()
        if key != state
    }


def test_silence_beats_a_wrong_guess_only_against_the_opposite(world, train):
    gains, opposed = [], 0
    checked = 0
    for e in train[:400]:
        for level, state in read(e.reply).expressed().items():
            if level not in TABLES:
                continue
            silent, guesses = variants(e.reply, level, state)
            quiet = score_reply(e.reply, silent, states=e.states).value
            gains.append(1 - quiet)
            for key, text in guesses.items():
                more = quiet - score_reply(e.reply, text, states=e.states).value
                checked, opposed = checked + 1, opposed + (more > 1e-9)
                assert more <= (0.10 + 1e-9 if OPPOSED.get(state) == key else 1e-9)
    assert mean(gains) > 0.13 and opposed / checked < 0.15


# 9. ceiling and chance


@pytest.mark.parametrize(
    "seed, split, floor", [(0, "train", 0.95), (1, "test_seen", 0.93), (2, "test_seen", 0.93)]
)
def test_ceiling_and_chance(seed, split, floor):
    lines = _baselines(make_world(WorldConfig(seed=seed)), split, draws=1)

    def levels(name):
        return [lines[name][level] for level in STATE_LEVELS]

    assert min(levels("rules")) >= floor and lines["rules"]["response_alignment"] >= 0.85
    assert max(levels("agreeable")) <= 0.47 and max(levels("uniform")) <= 0.47
    assert (
        0.2 < lines["uniform"]["state_alignment"] < 0.28
        and lines["uniform"]["response_alignment"] < 0.22
    )


# 10. splits


@pytest.mark.parametrize("seed", range(3))
def test_splits(seed):
    world = make_world(WorldConfig(seed=seed))
    rows = world.examples
    held = {u.id for u in world.users.values() if u.held_out}
    assert len(held) == 40 and sum(t.held_out for t in world.topics) == 36
    assert {(e.id, e.split) for e in split_by_context(rows, 0.2, 0.0, held)} == {
        (e.id, e.split) for e in rows
    }
    assert check_leakage(rows) == []
    train = [e for e in rows if e.split == "train"]
    assert len(train) >= 3700 and sum(e.split == "test" for e in rows) >= 150
    traits = {world.user(e.user_id).traits for e in train}
    seen = {world.post(e.context_id).target for e in train}
    for e in rows:
        target = world.post(e.context_id).target
        if e.split == "test":
            assert world.user(e.user_id).traits not in traits
        if e.split != "train":
            assert target not in seen and set(target.split()) <= {
                w for t in seen for w in t.split()
            }
        if e.split != "train":
            assert e.order > max(row.order for row in train[-5:])


@pytest.mark.parametrize(
    "size",
    [
        dict(users=12, topics=60, posts_per_topic=1, replies_per_user=6),
        dict(users=13, topics=97),
        dict(noise=1.0),
        dict(users=60, noise=0),
    ],
)
def test_small_and_odd_worlds(size):
    world = make_world(WorldConfig(**size))
    assert {e.split for e in world.examples} >= {"train"} and check_leakage(world.examples) == []
    if not world.config.noise:
        assert _baselines(world, "train", draws=1)["rules"]["state_alignment"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        dict(users=11),
        dict(topics=59),
        dict(topics=181),
        dict(posts_per_topic=0),
        dict(replies_per_user=0),
        dict(replies_per_user=541),
        dict(noise=-0.1),
        dict(noise=float("nan")),
    ],
)
def test_bad_sizes_are_refused(bad):
    with pytest.raises(ConfigError, match=f"world.{next(iter(bad))}: expected"):
        WorldConfig(**bad)


def test_examples_survive_a_file(world, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", world.examples[:50])
    assert [from_dict(Example, d) for d in read_jsonl(path)] == world.examples[:50]


# 11. arithmetic and cost


def soup(rng, n):
    "A text of known phrases, targets, glue, negators and junk"
    words = [
        *_lexicon(),
        "the night tram",
        "the city market",
        "not",
        "never",
        "of",
        "banana",
        "<stance>",
        "é",
        "42",
    ]
    return " ".join(rng.choice(words).replace("{T}", "the night tram") for _ in range(n))


def test_value_is_coverage_minus_penalty(train):
    rng = random.Random(11)
    for _ in range(1000):
        e, text = rng.choice(train), soup(rng, rng.randint(0, 8))
        scores = [score_state(level, e.states[level], text) for level in STATE_LEVELS]
        scores += [
            score_reply(e.reply, text, states=e.states),
            *score_reply_states(e.reply, text).values(),
        ]
        for s in scores:
            assert (
                s.value == pytest.approx(clip(mean(s.matches) - s.penalty)) and 0 <= s.penalty <= 1
            )
            assert len(s.key_points) == len(s.matches) and s.reason


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


def test_markup_counts_only_by_its_words(train):
    for e in train[:100]:
        for left, right in (
            ("<stance>", " stance "),
            ("<|im_end|>", " im end "),
            ("</think>", " think "),
            ("<b onclick='x'>", " b onclick x "),
        ):
            for level in STATE_LEVELS:
                s = e.states[level]
                assert score_state(level, s, left + s + left) == score_state(
                    level, s, right + s + right
                )
            assert score_reply(e.reply, left + e.reply) == score_reply(e.reply, right + e.reply)


def test_case_and_punctuation_do_not_matter(train):
    for e in train[:100]:
        assert score_reply(e.reply, re.sub(r"\W+", " ** ", e.reply).upper()).value == 1


# copying, wordings, needs


def test_copied_share():
    assert copied_share("a b c d e f g", "x a b c d e f y") == 0.5
    assert (
        copied_share("a b c d e f", "")
        == copied_share("", "a b c d e f")
        == copied_share("a b c", "a b c")
        == 0
    )
    assert copied_share("A, b; c. D e f!", "a b c d e f") == 1


def test_truth_without_states_is_an_error():
    for call in (
        lambda: score_state("stance", "hello there", "x"),
        lambda: score_reply("hello there", "x"),
        lambda: score_reply_states("", "x"),
    ):
        with pytest.raises(DataError, match="knows only the phrases of this world"):
            call()
    with pytest.raises(DataError, match="Did you mean 'stance'"):
        score_state("stanc", "i love the night tram", "x")


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


def test_perturb_replaces_the_stated_share():
    rng = random.Random(6)
    start = States.uniform("the night tram", rng)
    same = [mean(a == b for a, b in zip(start, start.perturbed(0.6, rng))) for _ in range(4000)]
    chance = mean([1 / 4, 1 / 12, 1 / 6, 1 / 6, 1 / 6, 1 / 12])
    assert mean(same) == pytest.approx(0.4 + 0.6 * chance, abs=0.02)


def test_emotions_have_two_sides():
    assert not set(dict(FEELS.values())) & set(dict(FEELS.values()).values())


def test_import_is_light():
    code = (
        "import sys, humanlm.worlds.mini; print([m for m in ('torch', 'numpy', 'pandas', "
        "'matplotlib', 'datasets') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_pictures_escape_hostile_text():
    from humanlm.worlds.reading import highlight

    bad = "<img src=x onerror=alert(1)> \"'& i love the night tram İİ"
    page = highlight(bad)
    assert "<img" not in page and "&lt;" in page
