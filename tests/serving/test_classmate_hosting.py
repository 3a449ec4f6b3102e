"Classmates over HTTP answer as those in this process do, and nothing outlives the command."

import http.client
import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import warm

from humanlm.classmate.classmates import (
    ClassmateConfig,
    ReasoningView,
    ask_classmates,
    read_mapping,
)
from humanlm.classmate.method import answer_scores, make_classmates, pooled_rewards
from humanlm.clients.client import ScriptedClient
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import run_sync
from humanlm.core.web import serving_app
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.local import HFClient
from humanlm.serving.classmates import _ClassmateService, _mapping_file
from humanlm.serving.service import make_app

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["start at 3, add 2, take 1.", "3, then 5, 4.", "<think>4</think>4"] * 9
QUESTION = (
    {"role": "system", "name": "", "content": "Be short."},
    {"role": "user", "name": "", "content": "start at 3, add 2, take 1."},
)
SHOWN = [
    ReasoningView(f"q{i}", 0, QUESTION, said)
    for i, said in enumerate(
        ("3, then 5, 4.", "</think>I <|im_end|> say 7", "4 <think>", "5 take 1")
    )
]
CHAT = {"model": "first", "messages": [{"role": "user", "content": "2 + 2?"}]}
BEGUN = {
    "model": "first",
    "messages": [*CHAT["messages"], {"role": "assistant", "content": "<think>4</think>"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    "Two models that say different things"
    home, found = tmp_path_factory.mktemp("models"), []
    for seed, name in enumerate(("first", "other")):
        model, tok = make_model(
            ModelConfig(template="chatml", hidden=32, heads=2, kv_heads=2, mlp=64, vocab=420),
            TEXTS,
            ["<think>", "</think>"],
            seed,
        )
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.data *= 8  # what is read counts
        save_model(model, tok, home / name)
        found.append(home / name)
    return found


def until(holds, process=None, seconds=120.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end and (process is None or process.poll() is None), (
            process and process.stdout + process.stderr
        )
        time.sleep(0.05)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Hosting(warm.Process):
    "`humanlm serve classmates`, as somebody would start it"

    def __init__(self, out, *words, port=0, **env):
        self.out = Path(out)
        super().__init__(
            "-m",
            "humanlm",
            "serve",
            "classmates",
            *words,
            "--host.out",
            out,
            "--host.port",
            port,
            cwd=ROOT,
            env=os.environ | env,
        )
        until(self.out.exists, self)

    def end(self, sign) -> int:
        self.send_signal(sign)
        return self.wait(60)


@pytest.fixture(scope="module")
def hosted(folders, tmp_path_factory):
    with Hosting(
        tmp_path_factory.mktemp("host") / "classmates.json",
        *folders,
    ) as process:
        yield process.out
        process.end(signal.SIGTERM)


def classmates(models, mapping, **settings):
    places = [str(mapping)] if mapping else models
    mates = make_classmates(ClassmateConfig(places, max_tokens=12, **settings), None, None)
    return [mate for mate in mates if mate.name in models]


@contextmanager
def at(models, tmp_path, key=""):
    "Models behind an address of this process, and the file that says so"
    service = _ClassmateService(models, key)
    with (
        serving_app(make_app(service)) as url,
        _mapping_file(
            tmp_path / "m.json", models, "127.0.0.1", int(url.rpartition(":")[2])
        ) as path,
    ):
        yield path, url, service


def post(url, body, headers=None, path="/v1/chat/completions"):
    "Ask a server; its status and what it said"
    if headers is None:
        headers = {}
    line = http.client.HTTPConnection(url.rpartition("/")[2], timeout=30)
    line.request(
        "POST",
        path,
        body if isinstance(body, bytes) else json.dumps(body),
        {"Content-Type": "application/json"} | headers,
    )
    answer = line.getresponse()
    return answer.status, json.loads(answer.read())


# ---- the same answers


def test_hosted_models_go_on_with_the_same_reasoning_as_in_this_process(hosted, folders):
    names = [folder.name for folder in folders]
    assert read_mapping(hosted).keys() == {*names} and len({*read_mapping(hosted).values()}) == 1, (
        "one process, one port"
    )
    far = run_sync(ask_classmates(classmates(names, hosted, temperature=0), SHOWN))
    near = run_sync(
        ask_classmates(classmates([f"hf/{folder}" for folder in folders], "", temperature=0), SHOWN)
    )
    assert [[one.status for one in row] for row in far] == [["answered", "answered"]] * len(SHOWN)
    assert [[one.texts for one in row] for row in far] == [
        [one.texts for one in row] for row in near
    ]
    assert all(row[0].texts != row[1].texts for row in far), (
        "the two models differ, so routing counts"
    )
    assert len({row[0].texts for row in far}) > 2, "what is shown counts"
    bare = run_sync(
        ask_classmates(
            classmates(names[:1], hosted, temperature=0),
            [row._replace(reasoning=None) for row in SHOWN[:1]],
        )
    )
    assert bare[0][0].texts != far[0][0].texts, "the reasoning counts"


# ---- files


# ---- bodies


MADE = {}


def local(folders):
    if not MADE:
        MADE["first"] = HFClient("first", HFClient(folders[0]).loaded)
    return MADE["first"]


def test_who_has_no_key_is_not_answered(tmp_path, monkeypatch):
    models = {"first": ScriptedClient(lambda request: "4", "scripted/first")}
    with at(models, tmp_path, key="k3y") as (path, url, _):
        assert (
            post(url, CHAT)[0] == 401 and post(url, CHAT, {"Authorization": "Bearer k3"})[0] == 401
        )
        assert post(url, CHAT, {"Authorization": "Bearer k3y"})[0] == 200
        monkeypatch.setenv("VLLM_API_KEY", "wrong")
        with pytest.raises(LLMError, match="auth"):
            run_sync(classmates(["first"], path)[0](SHOWN[0]))
        monkeypatch.setenv("VLLM_API_KEY", "k3y")
        assert run_sync(classmates(["first"], path)[0](SHOWN[0])).texts == ("4",)
    with at(models, tmp_path) as (_, url, _):
        assert post(url, CHAT, {"Host": "evil.test"})[0] == 403


# ---- failures


async def fours(places, texts):
    return [float(text == "4") for text in texts]


@pytest.mark.parametrize("kind", ["down", "fails", "not there"])
def test_a_server_that_fails_is_a_result_without_a_score_and_not_a_zero(tmp_path, kind):
    def say(request):
        raise RuntimeError("out of memory")

    with at(
        {
            "first": ScriptedClient(
                say if kind == "fails" else lambda request: "4", "scripted/first"
            )
        },
        tmp_path,
    ) as (path, _url, service):
        text = path.read_text()
        if kind == "not there":
            service.models.clear()
        if kind != "down":
            found = run_sync(ask_classmates(classmates(["first"], path, samples=2), SHOWN[:1]))
    if kind == "down":
        path.write_text(text)
        found = run_sync(ask_classmates(classmates(["first"], path, samples=2), SHOWN[:1]))
    assert found[0][0].status == "failed" and found[0][0].why and found[0][0].texts == (None, None)
    assert pooled_rewards(run_sync(answer_scores(found, fours))).isnan().all()


# ---- the command


@pytest.mark.parametrize("sign", [signal.SIGTERM])
def test_the_end_of_the_command_leaves_neither_process_nor_file(folders, tmp_path, sign):
    with Hosting(tmp_path / "m.json", folders[0]) as process:
        url = read_mapping(process.out)["first"].removesuffix("/v1")
        assert post(url, BEGUN | {"max_tokens": 2})[0] == 200
        assert process.end(sign) == 0 and "Traceback" not in process.stdout + process.stderr
        assert not process.out.exists() and not lives(process.pid)
    with pytest.raises(OSError):
        post(url, BEGUN)


# ---- humanlm serve
