"""What classmates cost beside the peers: the sandbox, finding reasoning in tokens, judging.

    python bench/classmate.py sandbox [--programs 40] [--rounds 5] [--workers 2]
    python bench/classmate.py reading [--rows 1024] [--tokens 4096] [--rounds 5]
    python bench/classmate.py overlap [--responses 32] [--rounds 5]

sandbox: ours is a program with one test through `Sandbox.score`: order, namespaces, limits,
program, comparison. The peer is `python -I -c pass` without any containment, as many at once.
`without site` is the same peer without the search for installed packages (`-S`), which in some
environments is most of its start. Programs per second, medians of the rounds; the target is at
least 0.5 times the peer.

reading: ours finds the reasoning of every row of token ids by `ReasoningReader`, in
tokens. The peer decodes every row and looks for the marks in its text (`text_span`), which gives
characters, not yet tokens; both must agree on the text of the reasoning. The rows are this
project's own text. Marks are one token each, or are spelled by several; `only marks` are rows
that hold nothing else, as somebody who means harm would write them: an eighth as many.
Milliseconds of CPU, medians; the target is half of the peer's time.

overlap: ours is the scoring of a step, in which classmates go on with the reasoning while a judge
rates the policy's answers, and rates theirs after that. The peers are its two halves, each alone:
classmates, with their answers rated; the judge, on the policy's answers. Both are scripts that
take 0.5 to 1.5 times the stated time. The target is at most 1.1 times the longer half.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
from common import ROOT, Clock, in_turns, median_ratio, ratio

from humanlm.classmate.classmates import AnswerRewardConfig, Classmate, ClassmateConfig
from humanlm.classmate.method import AnswerScorer, ReasoningRollout, ResponseReader
from humanlm.classmate.programs import Sandbox
from humanlm.classmate.reasoning import END_MARK, START_MARK, ReasoningReader, text_span
from humanlm.clients.client import ScriptedClient
from humanlm.clients.limits import Limits
from humanlm.core.basics import run_sync
from humanlm.models.config import train_tokenizer
from humanlm.training.method import ask_row

PROGRAM, TEST = "def more(n): return n + 1", "assert more(1) == 2"


# ---- sandbox


def bare(pool, count, *options):
    "Start processes that do nothing; how many a second"
    command = [getattr(sys, "_base_executable", sys.executable), "-I", *options, "-c", "pass"]
    with Clock() as clock:
        list(pool.map(lambda _: subprocess.run(command, check=True), range(count)))
    return count / clock.wall


def sandboxed(sandbox, count):
    "Test a program as often; how many tests a second"
    with Clock() as clock:
        verdicts = sandbox.score(PROGRAM, [TEST] * count, 10)
    assert all(verdicts), verdicts
    return count / clock.wall


def sandbox_rate(args):
    "Ours and the peers, in turn"
    for workers in sorted({1, args.workers}):
        with (
            closing(Sandbox(workers)) as sandbox,
            ThreadPoolExecutor(workers) as pool,
        ):
            sandboxed(sandbox, 2), bare(pool, 2)
            results = in_turns(
                {
                    "sandbox": lambda: sandboxed(sandbox, args.programs),
                    "python -I": lambda: bare(pool, args.programs),
                    "without site": lambda: bare(pool, args.programs, "-S"),
                },
                args.rounds,
            )
        print(f"\n{workers} at once {'programs/s':>14} {'times python -I':>18}")
        for name, rates in results.items():
            print(
                f"{name:<12} {statistics.median(rates):>11.1f} "
                f"{median_ratio(rates, results['python -I']):>18.2f}",
                flush=True,
            )
        ratio(
            f"programs in the sandbox, {workers} at once",
            median_ratio(results["sandbox"], results["python -I"]),
            "rate of bare python -I -c pass",
            ">= 0.5",
        )


# ---- reading


MARKS = (START_MARK, END_MARK)


def project_text():
    "The words of this project, as something that was written and not drawn"
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("humanlm/**/*.py")])
    return [
        line
        for file in files
        for line in file.read_text("utf-8").splitlines(True)
        if not any(mark in line for mark in MARKS) and line.isascii()
    ]


def long_rows(tokenizer, text, rows, tokens, seed=1):
    "Make rows [rows, tokens] with marks around reasoning; one in ten has no closing mark"
    rng = random.Random(seed)
    stream = np.array(tokenizer.encode("".join(text), add_special_tokens=False))
    ids = np.stack(
        [stream[(at := rng.randrange(len(stream) - tokens)) : at + tokens] for _ in range(rows)]
    )
    start, end = (tokenizer.encode(mark, add_special_tokens=False) for mark in MARKS)
    for row in ids:
        row[: len(start)] = start
        if rng.random() < 0.9:
            row[(at := rng.randrange(len(start), tokens - len(end))) : at + len(end)] = end
    return ids.tolist()


def only_marks(tokenizer, rows, tokens):
    unit = tokenizer.encode(END_MARK, add_special_tokens=False)
    return [(unit * (tokens // len(unit) + 1))[:tokens]] * rows


def by_text(tokenizer, ids):
    "The peer: decode every row, look for the marks"
    texts = tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
    return texts, [text_span(text) for text in texts]


def agreement(tokenizer, pieces, ids, spans, texts, peer_spans):
    "Share of rows in which both find the same reasoning, or none that is closed"

    def same(row, start, stop, closed, text, span):
        return closed == span.closed and "".join(pieces[i] for i in row[start:stop]).strip() in (
            text[span.start : span.stop].strip(),
            *([] if closed else [text.strip()]),
        )

    return sum(
        map(
            same,
            ids,
            [span.start for span in spans],
            [span.stop for span in spans],
            [span.closed for span in spans],
            texts,
            peer_spans,
        )
    ) / len(texts)


def cpu_ms(work):
    with Clock() as clock:
        work()
    return 1e3 * clock.cpu


def reading(args):
    "Ours and the peer, in turn"
    text = project_text()
    tokenizer = train_tokenizer(text, 16384, MARKS, "chatml")
    reader = ReasoningReader(tokenizer)
    pieces = reader.pieces
    print(
        f"{args.rows:,} x {args.tokens:,} tokens, vocabulary of "
        f"{len(pieces):,}\n{'':<24} {'ours ms':>9} {'decode ms':>10} {'ratio':>7} "
        f"{'agree':>6}"
    )
    for kind, ids in (
        ("marks around reasoning", long_rows(tokenizer, text, args.rows, args.tokens)),
        (
            f"  only marks, {args.rows // 8} rows",
            only_marks(tokenizer, args.rows // 8, args.tokens),
        ),
    ):
        agree = agreement(
            tokenizer,
            pieces,
            ids[:64],
            [*map(reader, ids[:64])],
            *by_text(tokenizer, ids[:64]),
        )
        results = in_turns(
            {
                "ours": lambda: cpu_ms(lambda: [*map(reader, ids)]),
                "peer": lambda: cpu_ms(lambda: by_text(tokenizer, ids)),
            },
            args.rounds,
        )
        print(
            f"{kind:<24} {statistics.median(results['ours']):>9.1f} "
            f"{statistics.median(results['peer']):>10.0f} "
            f"{median_ratio(results['ours'], results['peer']):>7.4f} {agree:>6.2f}",
            flush=True,
        )
        ratio(
            f"finding reasoning: {kind.strip()}",
            median_ratio(results["ours"], results["peer"]),
            "CPU time of decoding every row",
            "<= 0.5",
        )


# ---- overlap


class SlowClient(ScriptedClient):
    "Says one thing after a while"

    def __init__(self, name, text, seconds, rng):
        super().__init__(lambda request: text, name, limits=Limits(1024))
        self.seconds, self.rng = seconds, rng

    async def send(self, request):
        await asyncio.sleep(self.rng.uniform(0.5, 1.5) * self.seconds)
        return await super().send(request)


def wall(work):
    with Clock() as clock:
        run_sync(work())
    return clock.wall


def overlap(args):
    "A step's scoring and its halves, in turn"
    config, rng = ClassmateConfig(), random.Random(0)
    tokenizer = train_tokenizer(
        ["<think>two and two</think>4 RATING: 7"] * 9, 400, MARKS["think"], "chatml"
    )
    rows = [
        ask_row("2 + 2?", f"q{i}", 40) | {"verifier": "sycophancy", "ground_truth": ""}
        for i in range(args.responses)
    ]
    ids = [tokenizer.encode("<think>two and two</think>4", add_special_tokens=False)] * len(rows)
    print(
        f"{len(rows)} responses\n{'classmates s':>12} {'judge s':>8} {'together s':>11} "
        f"{'times the longer':>17} {'times the sum':>14}"
    )
    for mates, judge in ((0.2, 0.2), (0.2, 0.6), (0.6, 0.2)):
        score = AnswerScorer(
            AnswerRewardConfig(verifier="sycophancy", model="scripted/judge"),
            {"judge": SlowClient("scripted/judge", "RATING: 7", judge, rng)},
        )
        rollout = ReasoningRollout(
            config,
            [Classmate(SlowClient("scripted/mate", "4", mates, rng))],
            ResponseReader(config, tokenizer),
            score,
        )
        read = rollout.reader(rows, ids)
        arms = {
            "both": lambda: rollout.scored(rows, ids, 0),
            "classmates": lambda: rollout.classmate(rows, read.shown, 0),
            "judge": lambda: rollout.score(rows, read.answers),
        }
        results = in_turns(
            {name: lambda work=work: wall(work) for name, work in arms.items()}, args.rounds
        )
        halves = list(zip(results["classmates"], results["judge"]))
        ratio(
            f"scoring, classmates {mates} s and judge {judge} s",
            median_ratio(results["both"], map(max, halves)),
            "time of the longer half",
            "<= 1.1",
        )
        print(
            f"{mates:>12} {judge:>8} {statistics.median(results['both']):>11.2f} "
            f"{median_ratio(results['both'], map(max, halves)):>17.2f} "
            f"{median_ratio(results['both'], map(sum, halves)):>14.2f}",
            flush=True,
        )


BENCHES = {"sandbox": sandbox_rate, "reading": reading, "overlap": overlap}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=BENCHES)
    for name, default in {
        "programs": 40,
        "rounds": 5,
        "workers": 2,
        "rows": 1024,
        "tokens": 4096,
        "responses": 32,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    BENCHES[args.what](args)


if __name__ == "__main__":
    main()
