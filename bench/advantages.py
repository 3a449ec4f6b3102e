"""Time advantages for 1,024 x 1,024 tokens against a loop over rows (verl's form) and whole groups
in order (TRL's form).

python bench/advantages.py
"""

import statistics
import time
from collections import defaultdict

import torch
from common import ratio

from humanlm.training.advantages import broadcast, group_advantages
from humanlm.training.run import keep_memory

B, T, G = 1024, 1024, 8


def ours(rewards, groups, mask):
    return broadcast(group_advantages(rewards, groups), mask)


def rows_one_by_one(rewards, groups, mask):
    "A dictionary of groups, then each row by itself, as in verl's grpo estimator"
    members, index = defaultdict(list), groups.tolist()
    for i, g in enumerate(index):
        members[g].append(rewards[i])
    mean = {g: torch.stack(m).mean() for g, m in members.items()}
    std = {g: torch.stack(m).std() for g, m in members.items()}
    scores = torch.stack([(rewards[i] - mean[g]) / (std[g] + 1e-6) for i, g in enumerate(index)])
    return scores[:, None] * mask


def groups_in_order(rewards, groups, mask):
    "A view of equal groups, as in TRL; no missing scores, no float64, no floor"
    r = rewards.view(-1, G)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1, 1) * mask


def milliseconds(f, *args) -> float:
    start = time.perf_counter()
    f(*args)
    return 1e3 * (time.perf_counter() - start)


def main(rounds: int = 41):
    keep_memory()  # as the training command does
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = torch.rand(B), torch.arange(B) // G, torch.rand(B, T) > 0.3
    forms = {
        "grouped, here": ours,
        "rows one by one": rows_one_by_one,
        "groups in order": groups_in_order,
    }
    for f in forms.values():
        torch.testing.assert_close(f(*args), ours(*args), atol=1e-4, rtol=1e-4)
    times = {n: [] for n in forms}
    for _ in range(rounds):  # alternately, so that a busy machine slows all of them
        for n, f in forms.items():
            times[n].append(milliseconds(f, *args))
    base = statistics.median(times["grouped, here"])
    print(
        f"{B} rows x {T} tokens, groups of {G}, one CPU thread, torch "
        f"{torch.__version__}, median of {rounds}\n"
    )
    for n, t in times.items():
        print(f"{n:18}{statistics.median(t):9.3f} ms   {statistics.median(t) / base:7.2f} x")
    for n in (n for n in forms if n != "grouped, here"):
        ratio(
            "advantages of 1,024 x 1,024 tokens", base / statistics.median(times[n]), f"time of {n}"
        )
    alone = statistics.median(milliseconds(group_advantages, *args[:2]) for _ in range(rounds))
    print(f"\n{'without broadcast':18}{alone:9.3f} ms")


if __name__ == "__main__":
    main()
