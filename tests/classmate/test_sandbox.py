"Programs that a model wrote are contained and bounded, and cannot say that they passed."

import json
import math
import os
import shutil
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from humanlm.classmate import cell
from humanlm.classmate.programs import (
    MAX_CLAIMS,
    Sandbox,
    _answered,
    _keeper_command,
    _read_test,
    _same_output,
)
from humanlm.classmate.verifiers import _find_program, _verify_code
from humanlm.core.basics import ConfigError, DataError, HumanLMError

SECRET = "correct-horse-of-the-server"
MORE = "def more(n): return n + 1"
CLASSIC = ["assert more(1) == 2", "assert more(1) == 3", "while True: more(1)"]


@pytest.fixture(scope="module")
def box():
    os.environ["SANDBOX_TEST_SECRET"] = SECRET
    try:
        made = Sandbox()
    except ConfigError as e:
        pytest.skip(f"no unprivileged namespaces: {e}"[:200])
    yield made
    made.close()
    del os.environ["SANDBOX_TEST_SECRET"]


def said(box, program, seconds=3.0):
    "What a program prints; it must end by itself"
    run = box.run(program, seconds=seconds)
    assert run.code == 0, run
    return run.output


# ---------------------------------------------------------------- the published fixtures


def test_a_right_a_wrong_and_an_endless_test(box):
    begin = time.perf_counter()
    found = box.score(MORE, CLASSIC)
    assert found == [1, 0, 0]
    assert time.perf_counter() - begin < 4


def test_exits_and_printed_output_give_the_published_answers(box):
    assert box.score("import sys\nsys.exit(0)\n" + MORE, CLASSIC[:1]) == [0]
    doubled = [{"input": "4\n", "output": "8\n"}, {"input": "4\n", "output": "9"}]
    assert box.score("print(2 * int(input()))", doubled) == [1, 0]


# ---------------------------------------------------------------- the red team: resources


def test_a_fork_bomb_ends_with_its_program(box):
    begin = time.perf_counter()
    assert (
        box.run(
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", seconds=1
        ).code
        is None
    )
    assert time.perf_counter() - begin < 8 and box.score(MORE, CLASSIC[:1]) == [1]
    assert (
        said(
            box,
            "import os, time\nn = 0\ntry:\n    while True:\n        if not os.fork(): "
            "time.sleep(9)\n        n += 1\nexcept OSError: print(n)",
        )
        == "7\n"
    )


def test_memory_is_bounded_also_where_no_limit_counts_it(box):
    assert said(box, "try: bytearray(10 ** 9)\nexcept MemoryError: print('no')") == "no\n"
    kinds = (
        "import ctypes, os\nc = ctypes.CDLL(None)\nprint(c.shmget(0, 10 ** 9, 0o1600), "
        "c.syscall(319 if os.uname().machine == 'x86_64' else 279, b'', 0))"
    )
    assert said(box, kinds) == "-1 -1\n"


def test_the_disk_is_a_small_folder_that_is_gone_afterwards(box):
    fill = (
        "n = 0\ntry:\n    for i in range(100):\n        with open(f'/tmp/{i}', 'wb') as f: "
        "n += f.write(bytes(2 ** 20))\nexcept OSError: print(n)"
    )
    assert 8 * 2**20 < int(said(box, fill)) <= 16 * 2**20
    assert (
        int(
            said(
                box,
                "n = 0\ntry:\n    while True:\n        open(f'/tmp/{n}', "
                "'w').close()\n        n += 1\nexcept OSError: print(n)",
            )
        )
        <= 1024
    )
    assert said(box, "import os; print(os.listdir('/tmp'), os.getcwd())") == "[] /tmp\n"


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os\nwhile True: os.write(3, b'[' * 65536)",
    ],
)
def test_output_without_end_is_cut(box, program):
    begin = time.perf_counter()
    run = box.run(program, seconds=2)
    assert run.code not in (0, None), "the limit of a file must end it, not the time"
    assert (
        len(run.output) <= 4 * 2**20
        and len(run.claims) <= MAX_CLAIMS + 1
        and time.perf_counter() - begin < 8
    )


@pytest.mark.parametrize(
    "program",
    [
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, "
        "signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
    ],
)
def test_a_program_that_will_not_end_is_ended(box, program):
    begin = time.perf_counter()
    assert box.run(program, seconds=0.5).code is None and time.perf_counter() - begin < 5


# ---------------------------------------------------------------- the red team: reaching out


def test_no_network(box):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        tries = (
            "import socket\nfor kind in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, "
            "40):\n    try: socket.socket(kind); print('open')\n    except OSError as e: "
            "print(e.errno)\ntry: socket.create_connection(('127.0.0.1', "
            f"{server.getsockname()[1]}), 1)\nexcept OSError as e: print(e.errno)"
        )
        assert said(box, tries).split() == ["1"] * 5
        with pytest.raises(TimeoutError):
            server.accept()
    assert (
        said(
            box,
            "print(*(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line))",
        ).strip()
        == "lo"
    )


def test_proc_shows_no_process_of_the_machine(box):
    assert (
        said(box, "import os; print([p for p in os.listdir('/proc') if p.isdigit()], os.getpid())")
        == "['1'] 1\n"
    )
    assert said(
        box, "try: open('/proc/sys/kernel/core_pattern', 'w')\nexcept OSError as e: print(e.errno)"
    ) in ("13\n", "30\n")


def test_secrets_of_the_server_are_nowhere(box, tmp_path):
    assert os.environ["SANDBOX_TEST_SECRET"] == SECRET
    (tmp_path / "key").write_text(SECRET)
    program = f"""import glob, os
found = [repr(dict(os.environ))]
for path in [*glob.glob('/proc/*/environ'), *glob.glob('/proc/*/cmdline'),
             {str(tmp_path / "key")!r}, os.path.expanduser('~/.ssh/id_rsa'),
             '/etc/passwd', '/etc/shadow', '/run/secrets']:
    try: found.append(open(path, 'rb').read().decode('latin-1'))
    except OSError: pass
os.symlink({str(tmp_path)!r}, '/tmp/out')
print({SECRET!r} in ''.join(found), len(found), os.listdir('/'), os.path.exists('/tmp/out/key'),
      sorted(os.listdir('/proc/self/fd')), sorted(os.environ))"""
    there, count, *_ = said(
        box,
        program.replace(
            f"print({SECRET!r}",
            "S = bytes.fromhex('" + SECRET.encode().hex() + "').decode()\nprint(S",
        ),
    ).split()
    assert there == "False" and count == "7", (
        "the environment as Python, as three names of this process, and its command"
    )
    shown = said(box, program)
    assert (
        "home" not in shown
        and "'etc'" not in shown
        and "'run'" not in shown
        and shown.rstrip().endswith("['0', '1', '2', '3', '4'] ['HOME', 'LANG', 'PATH']")
        and "] False [" in shown
    )


def test_nothing_is_written_outside_of_the_folder(box, tmp_path):
    (tmp_path / "mine").write_text("as it was")
    program = f"""import os, sys
os.symlink({str(tmp_path / "mine")!r}, '/tmp/link')
done = []
for path in ('/tmp/link', {str(tmp_path / "new")!r}, '/new', '/usr/new', '/usr/lib/new',
             '/etc/new', '/dev/new', '/proc/new', '/tmp/../new', sys.base_prefix + '/new',
             os.__file__):
    try: open(path, 'a').close(); done.append(path)
    except OSError: pass
print(done)"""
    assert (
        said(box, program) == "[]\n"
        and (tmp_path / "mine").read_text() == "as it was"
        and [p.name for p in tmp_path.iterdir()] == ["mine"]
    )
    last = {
        line.split()[1]: line.split()[3].split(",")[0]
        for line in said(box, "print(open('/proc/self/mounts').read())").splitlines()
        if line
    }
    assert {path for path, way in last.items() if way != "ro"} == {"/tmp"}


def test_signals_reach_nobody_else(box):
    keeper = box.keeper._process.pid
    run = box.run(
        "import os, signal\nprint(os.getppid(), flush=True)\nfor who in (-1, "
        f"os.getppid(), 2, {os.getpid()}, {keeper}, {keeper + 1}):\n    try: "
        "os.kill(who, signal.SIGKILL)\n    except OSError: pass"
    )
    assert (
        run.output == "0\n"
        and box.keeper._process.poll() is None
        and box.keeper._process.pid == keeper
        and box.score(MORE, CLASSIC[:1]) == [1]
    )


def named(name):
    return [p for p in Path("/proc").glob("[0-9]*/comm") if name in _read(p)]


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


DAEMON = """import ctypes, os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)
        for i in (0, 1, 2, 3): os.close(i)
        time.sleep(30)
    os._exit(0)
time.sleep(.2)
print('gone on')"""


def test_daemons_end_with_their_program(box):
    assert said(box, DAEMON.format(name="rogue-in")) == "gone on\n" and not named("rogue-in")


def test_no_privilege_is_left_and_none_can_be_won(box):
    status = dict(
        line.split(":\t")
        for line in said(box, "print(open('/proc/self/status').read())").splitlines()
        if ":\t" in line
    )
    assert (
        {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
        and status["NoNewPrivs"].strip() == "1"
        and status["Seccomp"].strip() == "2"
    )
    tries = (
        "import ctypes\nc = ctypes.CDLL(None)\nprint(c.unshare(0x10000000), c.mount(b'x', "
        "b'/tmp', b'tmpfs', 0, None), c.umount2(b'/proc', 2), c.chroot(b'/tmp'), "
        "c.ptrace(0, 0, 0, 0), c.setuid(0), c.sethostname(b'x', 1))"
    )
    assert {*said(box, tries).split()} == {"-1"}
    assert (
        said(
            box,
            "import ctypes, os\nc = ctypes.CDLL(None)\nprint(c.syscall(56 if "
            "os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0))",
        )
        == "-1\n"
    ), "clone must make no namespace of users either"


# ---------------------------------------------------------------- the red team: passing without
# being right

FRAMES = """import json, os, sys
def words():
    frame, found = sys._getframe(), set()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, dict):
                texts = {v for v in value.values() if isinstance(v, str)}
                found |= {v for v in texts if v.startswith('word_')}
        frame = frame.f_back
    return found
"""
CHEATS = {
    "an object that equals everything": "class Any:\n"
    "    __eq__ = __lt__ = __contains__ = lambda *a: True\n"
    "    def __ne__(self, o): return False\ndef more(n): return Any()",
    "an int that equals everything": "class Any(int):\n    __eq__ = lambda *a: True\n"
    "    __hash__ = None\ndef more(n): return Any(7)",
    "a result on stdout": "print('{\"results\": [1]}\\n[1]\\npassed')\ndef more(n): return 0",
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef more(n): os._exit(0)",
    "sys.exit in the call": "import sys\ndef more(n): sys.exit(0)",
    "assert that does nothing": "import builtins\nbuiltins.AssertionError = Warning\n"
    "builtins.int = lambda *a: 2\ndef more(n): return 0",
    "comparison of a library": "import operator, json\noperator.eq = lambda *a: True\n"
    "json.dumps = lambda *a, **k: '{\"claims\": []}'\ndef more(n): return 0",
    "import hook": "import sys\nclass Hook:\n    def find_spec(self, *a): raise "
    "SystemExit(0)\nsys.meta_path.insert(0, Hook())\nsys.modules.clear()\ndef more(n): "
    "return 0",
    "trace": "import sys\nsys.settrace(lambda f, *a: f.f_locals.update(value=7))\ndef more(n): "
    "return 0",
    "a file of results": "import os\nfor fd in range(16):\n    "
    'try: os.write(fd, b\'{"word": "", "claims": [[0, 2]]}\\n{"code": 0, "seconds": 0}\\n\')\n'
    "    except OSError: pass\nos._exit(0)",
    "the word of the run, and a guess": FRAMES
    + "[word] = words()\nos.write(3, json.dumps({'word': word, 'claims': [[0, "
    "5]]}).encode())\nos._exit(0)",
    "the word of the run, and no claim": FRAMES
    + "[word] = words()\nos.write(3, json.dumps({'word': word, 'claims': "
    "[]}).encode())\nos._exit(0)",
    "claims that break the reader": FRAMES
    + "[word] = words()\nos.write(3, json.dumps({'word': word, 'claims': [[0, ['dict', "
    "[[['list', []], 1]]]]]}).encode())\nos._exit(0)",
}


@pytest.mark.parametrize("name", CHEATS)
def test_who_is_not_right_does_not_pass(box, name):
    assert box.score(
        CHEATS[name], ["assert more(1) == 2", "def check(f):\n    assert f(1) == 2\ncheck(more)"]
    ) == [0, 0]


def test_a_distance_from_a_literal_is_measured_outside(box):
    cheat = (
        "class Near:\n    __sub__ = __rsub__ = lambda self, other: self\n    def "
        "__abs__(self): return -1.0\ndef more(n): return Near()"
    )
    assert box.score(
        cheat, ["assert abs(more(1) - 2) < 1e-6", "assert abs(2 - more(1)) <= 1e-6"]
    ) == [0, 0]


def test_patched_builtins_are_put_back_where_a_test_compares_by_itself(box):
    cheat = "import builtins\nbuiltins.abs = lambda x: 0\ndef more(n): return 0"
    test = "import math\nfor n in (1, 2): assert abs(more(n) - n - 1) < .5"
    assert box.score(cheat, [test]) == [0] and box.score(MORE, [test]) == [1]


def test_what_is_expected_never_enters_the_process(box):
    search = (
        "import sys\ndef more(n):\n    f, seen = sys._getframe(1), ''\n    while f:\n      "
        "  seen += repr(f.f_locals) + repr(f.f_globals) + repr(f.f_code.co_consts)\n       "
        " f = f.f_back\n    return str(n * 1000 + 242) in seen"
    )
    assert box.score(
        search,
        ["assert more(4) is False", "assert more(4) == 4242", "x = 4242\nassert more(4) is True"],
    ) == [1, 0, 1]
    assert "4242" not in _read_test("assert more(1) == 4242", "w")[0]


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"{}",
        b'{"word": "w"}',
        b'{"word": "w", "claims": [[-1, 2]]}',
        b'{"word": "w", "claims": [[0, 2], [1, 2]]}',
        b'{"word": "w", "claims": [[0, 2], [0, 3]]}',
        b'{"word": "v", "claims": [[0, 2]]}',
        b'{"word": "w", "claims": [[0, ["complex", [1, 2, 3]]]]}',
        b'{"word": "w", "claims": [[0, ["set", [["list", []]]]]]}',
        b"\xff" * 100,
        b"[" * 50_000,
        b'{"word": "w", "claims": [[0, ' + b'["list", [' * 5000,
        b"9" * 6000,
        b"x" * (MAX_CLAIMS + 1),
    ],
)
def test_hostile_claims_are_no_pass_and_no_error(told):
    _, checks = _read_test("assert f() == 2", "w")
    assert _answered(b'{"word": "w", "claims": [[0, 2]]}', "w", checks) and not _answered(
        told, "w", checks
    )


@pytest.mark.parametrize(
    "test", ["assert (", "\0", "(" * 5000, "-" * 50_000 + "1", "x" + ".a" * 20_000 + " =", "def"]
)
def test_a_test_that_is_no_python_is_an_error_and_no_zero(test):
    with pytest.raises(DataError, match="no Python"):
        _read_test(test, "w")


def test_hostile_texts_take_linear_time():
    begin = time.process_time()
    for unit in ("```\n", "```py\n", "~~~~\n", "`", " ", "\n", "```a", "    ```\n"):
        _find_program(unit * (200_000 // len(unit)))
    for unit in ("1 ", "1e9 ", "9", "\n", "nan ", "."):
        _same_output(unit * 20_000, unit * 20_000 + "1")
    assert time.process_time() - begin < 5


# ---------------------------------------------------------------- without containment


def test_without_a_tool_nothing_runs(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="none is run"):
        Sandbox()


def test_where_namespaces_are_refused_nothing_runs(monkeypatch, tmp_path):
    (tmp_path / "unshare").write_text(
        "#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="not permitted"):
        Sandbox()
    monkeypatch.setattr("humanlm.classmate.programs.platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match="riscv64"):
        _keeper_command()


def test_a_keeper_that_dies_is_an_error_then_a_new_one(box):
    with closing(Sandbox()) as own:
        job = threading.Timer(0.3, own.keeper._process.kill)
        job.start()
        with pytest.raises(HumanLMError):
            own.score("", ["while True: pass"], 5)
        own.keeper._process.wait()
        assert own.score(MORE, CLASSIC[:1]) == [1]


# ---------------------------------------------------------------- the reward


def test_the_reward_is_the_share_of_tests_and_nan_where_nothing_is_known(box):
    answer, gold = (
        f"First:\n```\nbad(\n```\nBetter:\n```python\n{MORE}\n```\nDone.",
        json.dumps(["assert more(1) == 2", "assert more(2) == 3", "assert more(1) == 1"]),
    )
    assert _verify_code(answer, gold, box).value == pytest.approx(2 / 3)
    assert _verify_code("no program", gold, box).value == 0
    reads = "```\nprint(int(input()) * 2)\n```"
    assert _verify_code(reads, json.dumps([{"input": "2", "output": "4"}]), box).value == 1
    for broken in ("[]", "no", '["assert ("]'):
        verdict = _verify_code(answer, broken, box)
        assert math.isnan(verdict.value) and verdict.why


def test_the_keeper_knows_only_the_standard_library():
    import ast
    import sys

    tree = ast.parse(Path(cell.__file__).read_text("utf-8"))
    names = {
        a.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for a in node.names
    } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names and shutil.which("true")


PROGRAM = "def double(x):\n    return 2 * x"


@pytest.mark.parametrize("label", ["python", "py", "Python3", "{.python}", ""])
@pytest.mark.parametrize(
    "behind",
    [
        "```bash\npython x.py\n```",
        "```output\n4\n```",
        "```\n[2, 4]\n```",
        "```python\n# so\n>>> double(2)\n4\n```",
        "```py\nIn [1]: double(2)\nOut[1]: 4\n```",
        "~~~json\n{}\n~~~",
        "```sh\nls",
    ],
)
def test_the_program_is_the_python_block_whatever_stands_behind_it(label, behind):
    assert _find_program(f"Here:\n```{label}\n{PROGRAM}\n```\nThen:\n{behind}\n") == PROGRAM


def test_the_last_program_counts_and_one_in_an_open_thought_does_not():
    assert _find_program("```python\na = 1\n```\n```python\nb = 2\n```") == "b = 2"
    assert _find_program("<think>\n```python\na = 1\n```") == ""
    assert (
        _find_program("1. So:\n    ```python\n    s.split('</think>')\n    ```")
        == "s.split('</think>')"
    )
