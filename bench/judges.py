"""What judging costs: candidates per second, and tokens sent per candidate.

    nice -n -5 python bench/judges.py           # about 20 s on a quiet machine
    nice -n -5 python bench/judges.py --quick   # about 10 s; at most 40 s on a busy one

Warm cache: 10,000 candidates in 2,500 groups of 4 are judged through the client and a server on
loopback (tests/server.py, a scripted judge), then again by a new client on the same cache folder.
Targets: 0 calls and 5,000 candidates per second or more in the second pass. On a busy machine,
candidates per CPU second say what the clock would on a quiet one.

Tokens: the same groups of 4, with a context of about 2,000 tokens and candidates of about 200,
judged as a group and one by one. A token is counted as four characters, of every message that
reaches the server; the provider's copy of the JSON schema is not counted.
Target: a group sends at most 40 % of what single judging sends.

Judges without a model score descriptions of the synthetic world; they have no peer and no target.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile

from common import Clock, in_turns, ratio, serving

from humanlm.clients.cache import DiskCache
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.core.records import Message
from humanlm.rewards.judges import OracleJudge, RuleJudge
from humanlm.rewards.scoring import JudgeRequest, score_groups
from humanlm.rewards.verdicts import LLMJudge
from humanlm.worlds.mini import make_world
from humanlm.worlds.states import STATE_LEVELS

WORDS = (
    "bus tram night council rent cap park school vote paper street light money year people "
    "good late never always maybe"
).split()
CONCURRENCY = 64


def words(draw, tokens):
    "Text of about so many tokens of four characters"
    text = ""
    while len(text) < 4 * tokens:
        text += draw.choice(WORDS) + " "
    return text[: 4 * tokens].strip()


def stated_groups(count, context_tokens=100, candidate_tokens=30, seed=0):
    "Groups of 4 whose candidates state the number that the server's judge then gives"
    draw = random.Random(seed)
    for i in range(count):
        context = (Message(f"m{i}", name="A", content=words(draw, context_tokens)),)
        texts = {f"c{k}": f"{draw.random():.4f} {words(draw, candidate_tokens)}" for k in range(4)}
        yield JudgeRequest("stance", words(draw, candidate_tokens), texts, context, seed=i)


def stated(text):
    return float(text.split()[0])


def check(groups, judged):
    "Every candidate has the score that it states"
    for request, scores in zip(groups, judged, strict=True):
        for s in scores:
            if s.status != "scored" or abs(s.value - stated(request.candidates[s.id])) > 1e-9:
                raise SystemExit(f"wrong score: {s}")


async def judge_all(judge, groups):
    with Clock() as clock:
        judged = await score_groups(judge, groups, CONCURRENCY)
    check(groups, judged)
    return clock


def warm_cache(server, groups, passes):
    "Judge everything from an empty cache, then several times from the full one"
    count = sum(len(g.candidates) for g in groups)
    print(f"{count:,} candidates in {len(groups):,} groups, {CONCURRENCY} groups at once\n")
    print(
        f"{'':16} {'calls':>6} {'seconds':>8} {'CPU s':>6} {'candidates/s':>13} "
        f"{'per CPU s':>10}  target"
    )
    with tempfile.TemporaryDirectory() as folder:
        for i in range(passes + 1):
            server.reset()
            judge = LLMJudge(
                vllm_client(
                    "tiny",
                    server.url,
                    limits=Limits(concurrency=CONCURRENCY),
                    cache=DiskCache(folder),
                )
            )
            clock, calls = asyncio.run(judge_all(judge, groups)), server.stats()["requests"]
            name, target = (
                (f"warm, pass {i + 1}", "0 calls, >= 5,000/s") if i else ("cold, pass 1", "")
            )
            print(
                f"{name:16} {calls:>6,} {clock.wall:>8.2f} {clock.cpu:>6.2f} "
                f"{count / clock.wall:>13,.0f} {count / clock.cpu:>10,.0f}  {target}"
            )


def tokens(server, groups):
    "Input tokens of group and of single judging"
    print(
        f"\n{len(groups)} groups of 4, context of 2,000 tokens, candidates of 200 "
        "(characters / 4)\n"
    )
    print(
        f"{'protocol':16} {'calls':>6} {'tokens sent':>12} {'per candidate':>14} "
        f"{'of single':>10}  target"
    )
    sent = {}
    for protocol in ("single", "group"):
        judge = LLMJudge(
            vllm_client("tiny", server.url, limits=Limits(concurrency=CONCURRENCY)),
            protocol=protocol,
        )
        check(groups, asyncio.run(score_groups(judge, groups, CONCURRENCY)))
        usage = judge.ledger.total
        sent[protocol] = usage.tokens_in
        print(
            f"{protocol:16} {usage.calls:>6} {usage.tokens_in:>12,} "
            f"{usage.tokens_in / len(groups) / 4:>14,.0f} "
            f"{usage.tokens_in / sent['single']:>10.1%}  {'<= 40 %' if protocol == 'group' else ''}"
        )
    ratio(
        "tokens sent, judging by groups of 4",
        sent["group"] / sent["single"],
        "tokens of single judging",
        "<= 0.4",
    )


def world_groups(world, count, seed):
    "Groups of 4 descriptions from the synthetic world, of each state in turn"
    draw, examples = random.Random(seed), world.examples
    for i in range(count):
        level, example = STATE_LEVELS[i % len(STATE_LEVELS)], draw.choice(examples)
        texts = {f"c{k}": e.states[level] for k, e in enumerate(draw.sample(examples, 4))}
        yield JudgeRequest(level, example.states[level], texts, example.context, seed=i)


def without_model(world, count, rounds):
    "Judges that compute their scores"
    print(
        f"\nJudges without a model, {count} groups of 4 states of the synthetic world, "
        f"best of {rounds} rounds\n"
    )
    print(f"{'judge':24} {'candidates/s':>13} {'CPU ms each':>12}")

    seeds = itertools.count()

    def timed(judge):
        groups = list(world_groups(world, count, next(seeds)))
        with Clock() as clock:
            asyncio.run(score_groups(judge, groups))
        return clock

    judges = [OracleJudge(world), RuleJudge()]
    for judge in judges:
        timed(judge)  # word lists are read on first use
    for name, clocks in in_turns({j.name: lambda j=j: timed(j) for j in judges}, rounds).items():
        cpu = min(c.cpu for c in clocks)
        print(
            f"{name:24} {4 * count / min(c.wall for c in clocks):>13,.0f} "
            f"{1000 * cpu / count / 4:>12.3f}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer passes and groups: at most 40 s"
    )
    quick = parser.parse_args().quick
    print(f"Python {sys.version.split()[0]}; ", end="")
    with serving() as server:
        warm_cache(server, list(stated_groups(2500)), 2 if quick else 5)
        tokens(server, list(stated_groups(10 if quick else 100, 2000, 200)))
    without_model(make_world(), 300 if quick else 2000, 2 if quick else 5)


if __name__ == "__main__":
    main()
