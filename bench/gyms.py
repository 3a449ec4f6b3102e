"""Steps per second of every gym, milliseconds of turn credit, and what turns cost a rollout.

    python bench/gyms.py [--seconds 1.0] [--only GYM ...]

One process, one thread. Gyms: tasks of their own making, rule users, the calls of their experts,
played again and again; only `step` is on the clock, and construction on another one.
Targets: Function 50,000 steps/s, all others 5,000, construction 0.1 ms with the task at hand.
Credit: 1,024 x 8,192 tokens in 50 ms. Rollout: 64 dialogues over 8 turns with a user who answers
at once, against one plain generation of as many tokens behind prompts that hold what the users
say; at most 1.25 times its time per token. Eight gyms with 64 episodes each evaluated in 2
minutes, the suite that every gym must pass in 1.
"""

import argparse
import asyncio
import random
import statistics
import time

from common import in_turns, median_ratio, ratio

from humanlm.core.basics import HumanLMError
from humanlm.gyms.protocol import GYMS, find_gym, play_through

TARGETS = {"function": 50_000}
TURNS, DIALOGUES, WORDS = 8, 64, 24


# ---- gyms


async def script(gym, tasks):
    "The calls of the expert for each task"
    played = [await play_through(gym.play(task), gym.expert) for task in tasks]
    return [
        (task, [(turn.kind, turn.content) for turn in env.turns])
        for task, env in zip(tasks, played)
    ]


async def one_round(gym, calls, config):
    "Play the scripts once: steps, seconds in them, seconds of construction"
    start = time.perf_counter()
    envs = [gym.play(task, config) for task, _ in calls]
    made = time.perf_counter()
    for env, (_, turns) in zip(envs, calls):
        for call in turns:
            await env.step(call)
    return sum(len(turns) for _, turns in calls), time.perf_counter() - made, made - start


async def speed(gym, seconds, count=64):
    "Median steps per second and median milliseconds of construction"
    from humanlm.gyms.protocol import ToolCall

    config, tasks = gym.config, gym.tasks(count, 0)
    calls = [
        (task, [ToolCall(*turn) for turn in turns]) for task, turns in await script(gym, tasks)
    ]
    rounds, end = [], time.perf_counter() + seconds
    while not rounds or time.perf_counter() < end:
        rounds.append(await one_round(gym, calls, config))
    return statistics.median(n / s for n, s, _ in rounds), statistics.median(
        1e3 * c / len(calls) for *_, c in rounds
    )


def gyms(seconds, only):
    print(
        f"{'gym':12} {'steps/s':>10} {'target':>8} {'construction ms':>16}   expert's "
        "calls, rule users"
    )
    for name in only or GYMS:
        try:
            gym = find_gym(name)
        except (HumanLMError, ImportError, AttributeError) as e:
            print(f"{name:12} {'-':>10}   {type(e).__name__}: {str(e)[:90]}")
            continue
        rate, construction = asyncio.run(speed(gym, seconds))
        target = TARGETS.get(name, 5_000)
        marks = [
            word
            for word, bad in (("SLOW", rate < target), ("SLOW CONSTRUCTION", construction > 0.1))
            if bad
        ]
        print(f"{name:12} {rate:10,.0f} {target:8,} {construction:16.4f}   {' '.join(marks)}")


# ---- credit


def credit(rounds=15, B=1024, T=8192, K=16):
    import torch

    from humanlm.training.advantages import turn_advantages

    rng, times = random.Random(0), []
    starts = [[0, *sorted(rng.sample(range(1, T), K - 1))] for _ in range(B)]
    rewards = [[rng.random() for _ in row] for row in starts]
    mask, groups = (
        torch.rand(B, T, generator=torch.Generator().manual_seed(0)) > 0.3,
        torch.arange(B) // 8,
    )
    for _ in range(rounds):
        start = time.process_time()
        turn_advantages(rewards, starts, mask, groups, "r2g", "r2g")
        times.append(1e3 * (time.process_time() - start))
    print(
        f"\ncredit, {B:,} x {T:,} tokens, {K} turns: {statistics.median(times[1:]):.1f} "
        "ms of CPU (target 50)"
    )


# ---- evaluation and suite


def evaluation():
    from humanlm.core.basics import run_sync
    from humanlm.gyms.conformance import gym_problems
    from humanlm.gyms.evaluation import gym_results, play_tasks, player_of

    names = "function intention persuade search tau telepathy travel turtle".split()
    start = time.perf_counter()
    gyms = map(find_gym, names)
    gym_results(
        {
            "expert": [
                e
                for gym in gyms
                for e in run_sync(play_tasks(gym, gym.tasks(64, 0), player_of("expert", gym)))
            ]
        }
    )
    print(
        "\neight gyms, 64 episodes each by their experts, evaluated: "
        f"{time.perf_counter() - start:.1f} s (target 120)"
    )
    start = time.perf_counter()
    problems = [run_sync(gym_problems(find_gym(name))) for name in GYMS]
    print(
        f"suite of {len(problems)} gyms, {sum(map(len, problems))} problems: "
        f"{time.perf_counter() - start:.1f} s (target 60)"
    )


# ---- rollout


def rollout(rounds=5):
    import torch

    from humanlm.core.basics import run_sync
    from humanlm.models.checkpoints import make_model
    from humanlm.models.config import ModelConfig
    from humanlm.models.generation import generate
    from humanlm.training.dialogues import Heard, multi_turn
    from humanlm.training.policies import ModelPolicy

    torch.set_num_threads(1)
    words = (
        "the council votes on night trams river bridges and city markets after a long "
        "debate about the cost of the tower"
    ).split()
    made = make_model(
        ModelConfig(template="chatml"),
        [" ".join(random.Random(i).choices(words, k=20)) for i in range(200)],
    )
    rows = [
        {
            "row_id": f"r{i}",
            "level": "dialogue",
            "prompt": [
                {"role": "system", "content": " ".join(random.Random(i).choices(words, k=60))}
            ],
            "speaker": "",
            "thinking": None,
            "stop": (),
            "max_tokens": 2000,
            "turn_tokens": WORDS,
        }
        for i in range(DIALOGUES)
    ]

    async def user(talk):
        text = " ".join(random.Random(len(talk.turns)).choices(words, k=8))
        return Heard([{"role": "user", "content": text}])

    class Forgetful(ModelPolicy):
        "Reads everything again in each turn"

        def write(self, rows, sampling=None, prefixes=None):
            return super().write(rows, sampling)

    def dialogues(policy):
        start = time.process_time()
        talks = run_sync(multi_turn(user, TURNS)(rows, policy))
        return (time.process_time() - start) / sum(sum(t.mask) for t in talks)

    cached, forgetful = ModelPolicy(*made), Forgetful(*made)
    episodes = run_sync(multi_turn(user, TURNS)(rows, cached))
    prompts = [t.prompt_ids for t in episodes]
    heard = [[i for i, flag in zip(t.completion_ids, t.mask) if not flag] for t in episodes]

    def plain(prompts):
        start = time.process_time()
        completions = generate(
            made.model, made.tokenizer, prompts, TURNS * WORDS, seed=list(range(DIALOGUES))
        )
        return (time.process_time() - start) / sum(len(c.ids) for c in completions)

    arms = {
        "one generation": lambda: plain([[*p, *h] for p, h in zip(prompts, heard)]),
        "without users": lambda: plain(prompts),
        "kept prefixes": lambda: dialogues(cached),
        "all read again": lambda: dialogues(forgetful),
    }
    for arm in arms.values():
        arm()
    results = in_turns(arms, rounds)
    print(
        f"\nrollout, {DIALOGUES} dialogues x {TURNS} turns of {WORDS} tokens, users of "
        f"{len(heard[0]) / (TURNS - 1):.0f} tokens, prompts of {len(prompts[0])}; CPU "
        f"microseconds per written token, median of {rounds}"
    )
    for name, times in results.items():
        print(
            f"{name:16} {1e6 * statistics.median(times):8.1f}   "
            f"{median_ratio(times, results['one generation']):5.2f} x"
        )
    print("target for kept prefixes: 1.25 x")
    ratio(
        "dialogues over 8 turns, prefixes kept",
        median_ratio(results["kept prefixes"], results["one generation"]),
        "CPU time of one generation",
        "<= 1.25",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="per gym")
    parser.add_argument(
        "--only", nargs="*", choices=sorted(GYMS), help="these gyms, and nothing else"
    )
    args = parser.parse_args()
    gyms(args.seconds, args.only)
    if args.only:
        return
    evaluation()
    from humanlm.training.run import keep_memory

    keep_memory()  # as the training command does
    credit()
    rollout()


if __name__ == "__main__":
    main()
