"""Processes that help the first one do their parts, and an error of any of them ends what was
asked for, in the first one and in words."""

import os

import warm

SCRIPT = """
from humanlm.core.basics import HumanLMError
from humanlm.core.runs import by_all, is_helped, one_leads

def work(part, parts, x): return part, parts, x
def fails(part, parts): raise OSError("no room")

with one_leads() as leads:
    if leads:
        print(by_all(lambda part, parts: (part, parts, "own"), work, "given"))
        for own, other in ((lambda *_: 1, fails), (lambda *_: 1 / 0, work)):
            try: by_all(own, other, *(["x"] if other is work else []))
            except (HumanLMError, ZeroDivisionError) as e: print(f"{type(e).__name__}: {e}")
        print(by_all(lambda part, parts: "still there", work, 1), is_helped())
print("leads" if leads else "helped", is_helped(), flush=True)
"""


def test_processes_that_help_do_their_parts_and_their_errors_reach_the_first(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = warm.run(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        tmp_path / "script.py",
        cwd=tmp_path,
        env=os.environ | {"ACCELERATE_USE_CPU": "true"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "[(0, 2, 'own'), (1, 2, 'given')]"
    assert (
        lines[1] == "HumanLMError: A process that helped failed: OSError: no room"
        and lines[2] == "ZeroDivisionError: division by zero"
    )
    assert lines[3] == "['still there', (1, 2, 1)] True" and sorted(lines[4:]) == [
        "helped False",
        "leads False",
    ]
