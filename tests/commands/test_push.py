"Merging and publishing through the real client of the Hub, against a hub on loopback."

import base64
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import warm
import yaml

from humanlm.alignment.contract import contract
from humanlm.alignment.simulator import Simulator
from humanlm.core.basics import atomic_write
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.checkpoints import (
    add_adapter,
    has_adapter,
    load_model,
    make_model,
    save_model,
)
from humanlm.models.config import ModelConfig
from humanlm.training.sampling import RolloutConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = ModelConfig(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=500, lora_rank=4)
ASKED = HierarchyConfig(
    levels=["stance", "response"], thinking="hetero", response_tokens=9, state_tokens=8
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    "What a run with an adapter leaves"
    home = tmp_path_factory.mktemp("hub") / "runs" / "mini"
    model, tok = make_model(SMALL, ["the night tram is late", "the city tram is fine"] * 9)
    beside = contract(SMALL, ASKED, RolloutConfig(), "humanlm", "politics")
    base = save_model(model, tok, home / "models" / "base", beside)
    save_model(add_adapter(model, SMALL, base), tok, home / "models" / "humanlm", beside)
    atomic_write(
        home / "config.yaml",
        f"run: {{methods: [humanlm], out: {home.parent}}}\ndata: {{source: "
        f"miniworld}}\nmodel: {{name: tiny}}\n"
        f"judge: {{model: oracle}}\ntest_judge: {{model: rule}}\nhierarchy: {{path: "
        f"{home}/levels.json, thinking: hetero}}\n",
    )
    atomic_write(
        home / "run.json",
        json.dumps(
            {
                "seed": 3,
                "versions": {"torch": "2"},
                "judges": {"training": {"model": "oracle"}, "test": {"model": "rule"}},
            }
        ),
    )
    rows = [
        dict(model=m, metric="response_alignment", level="all", n=6, mean=v, low=v, high=v)
        for m, v in (("base", 0.1), ("humanlm", 0.52))
    ]
    atomic_write(home / "results.json", json.dumps({"rows": rows, "paired": []}))
    atomic_write(
        home / "data.md",
        "# Data set\n\n| split | replies |\n|---|---|\n| train | 214 |\n\nSynthetic: "
        "made by a program.\n",
    )
    return home


class Hub:
    "As much of the Hub as publishing needs; `refuse` names a step that fails"

    def __init__(self, refuse=""):
        hub, self.seen, self.files, self.made = self, [], {}, None

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.split("?")[0]
                hub.seen.append(path)
                if refuse and refuse in path:
                    return self.answer(401, {"error": "no"})
                if path == "/api/repos/create":
                    hub.made = json.loads(body)
                    return self.answer(200, {"url": f"{hub.url}/me/tram", "name": "me/tram"})
                if path == "/api/validate-yaml":
                    return self.answer(200, {"errors": [], "warnings": []})
                if "/preupload/" in path:
                    files = [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for f in json.loads(body)["files"]
                    ]
                    return self.answer(200, {"files": files, "commitOid": "0"})
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        content = base64.b64decode(line["value"]["content"])
                        hub.files[line["value"]["path"]] = content
                url = f"{hub.url}/me/tram/commit/1"
                self.answer(200, {"success": True, "commitUrl": url, "commitOid": "1"})

            do_GET = do_POST

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def command(run, *args, endpoint="http://127.0.0.1:9", **env):
    "Run `humanlm` as somebody would"
    somebody = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_secret"}
    env = os.environ | somebody | {"PYTHONPATH": str(ROOT)} | env
    return warm.run("-m", "humanlm", *args, env=env, cwd=run.parent.parent)


# ---- the card


def test_the_last_stage_of_a_run_is_published(run, tmp_path):
    "A run of two tastes: no method has the name of a stage"
    home = shutil.copytree(run, tmp_path / "runs" / "mini")
    stages = ("cold-start", "online-1-casual", "online-2-short")
    for name in stages:
        shutil.copytree(home / "models" / "humanlm", home / "models" / name)
    shutil.rmtree(home / "models" / "humanlm")
    (home / "config.yaml").write_text("run: {methods: [online]}\nmodel: {name: tiny}\n")
    atomic_write(home / "run.json", json.dumps({"seconds": dict.fromkeys(("data", *stages), 1.0)}))
    for steps in ("149", "150"):
        for name in ("trainer_state.json", "model.safetensors"):
            atomic_write(home / f"checkpoints/online-2-short/checkpoint-{steps}/{name}", "{}")
    asked = ("--hub.repo", "me/tram", "--hub.steps", "all", "--dry-run")
    done = command(home, "push", "mini", *asked)
    assert done.returncode == 0, done.stderr
    assert "cards/online-2-short.md" in done.stdout and "checkpoint  150\n" in done.stdout
    one = command(home, "push", "runs/mini/models/cold-start", *asked[:2], "--dry-run")
    assert "cards/cold-start.md" in one.stdout


def test_a_card_says_what_is_known_and_no_more(run, tmp_path):
    done = command(run, "push", "mini", "--hub.repo", "me/tram", "--hub.out", tmp_path / "card")
    assert done.returncode == 0, done.stderr
    card = (run / "cards" / "humanlm.md").read_text()
    head, text = card.split("---\n")[1:3][0], card.split("---\n", 2)[2]
    assert yaml.safe_load(head) | {"tags": 0} == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": 0,
    }
    for said in (
        "Synthetic world",
        "Rule judge",
        "Toy model",
        "training: oracle; test: rule",
        "| humanlm | 6 | 0.52",
        "| train | 214 |",
        "Seed 3; torch 2",
        "| `response` | `</response>` |",
        'hierarchy.thinking: "hetero"',
        "python -m humanlm.serve --model.name me/tram",
    ):
        assert said in text, said
    assert str(run.parent) not in card and "hf_secret" not in card


# ---- into a folder


def test_what_is_published_can_be_used_without_its_run(run, tmp_path):
    done = command(run, "push", "mini", "--hub.repo", "me/tram", "--hub.out", tmp_path / "repo")
    assert done.returncode == 0, done.stderr
    here, there = (
        load_model(run / "models/humanlm", device="cpu"),
        load_model(tmp_path / "repo", device="cpu"),
    )
    assert (
        has_adapter(here.model)
        and not has_adapter(there.model)
        and (tmp_path / "repo/README.md").read_text().startswith("---\nlicense")
    )
    ours, theirs = Simulator(run, "likes tea"), Simulator(tmp_path / "repo", "likes tea")
    assert (
        theirs.client.setup.hierarchy.load() == ours.client.setup.hierarchy.load()
        and theirs.source == "politics"
        and theirs.sampling == ours.sampling
    )
    assert theirs.reply("tea?") == ours.reply("tea?")


def test_merging_makes_a_plain_folder(run, tmp_path):
    done = command(run, "push", run / "models" / "humanlm", "--hub.out", tmp_path / "plain")
    assert (
        done.returncode == 0
        and (tmp_path / "plain/humanlm.json").read_text()
        == (run / "models/humanlm/humanlm.json").read_text()
    ), done.stderr
    again = command(run, "push", tmp_path / "plain", "--hub.out", tmp_path / "other")
    assert (
        again.returncode == 2
        and "plain model already" in again.stderr
        and not (tmp_path / "other").exists()
    )


# ---- to a hub


def test_a_model_is_published_in_one_commit(run):
    with Hub() as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    assert done.returncode == 0 and f"published   {hub.url}/me/tram/commit/1" in done.stdout, (
        done.stderr
    )
    assert {"README.md", "humanlm.json", "hierarchy.json", "model.safetensors"} <= {*hub.files}
    assert hub.files["README.md"].decode() == (run / "cards/humanlm.md").read_text()
    assert hub.made.get("private") or hub.made.get("visibility") == "private"
    assert sum("/commit/" in step for step in hub.seen) == 1
    assert "hf_secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("refuse", ["/api/repos/create", "/commit/", None])
def test_a_hub_that_refuses_or_is_not_there_is_said(run, refuse):
    with Hub(refuse or "") as hub:
        where = hub.url if refuse else "http://127.0.0.1:9"
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=where)
    assert done.returncode == 2 and "Nothing was published" in done.stderr and hub.files == {}
    assert "Traceback" not in done.stderr and "hf_secret" not in done.stderr


@pytest.mark.parametrize(
    "args, said",
    [
        (["push", "mini"], "Where to? Give --hub.repo"),
        (["push", "--hub.repo", "me/tram"], "Which model?"),
        (["push", "mini", "--hub.repo", "tram"], "must be ORG/NAME"),
        (["push", "nowhere", "--hub.repo", "me/tram"], "holds no model"),
    ],
)
def test_the_command_says_what_is_missing(run, args, said, monkeypatch, capsys):
    from humanlm.core.commands import main

    monkeypatch.chdir(run.parent.parent)
    assert main(args) == 2 and said in capsys.readouterr().err


# ---- checkpoints

KEPT = (
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "training_args.bin",
    "trainer_state.json",
    "gyms.json",
    "events.out.tfevents.1",
)


@pytest.fixture(scope="module")
def long_run(run, tmp_path_factory) -> Path:
    "A run whose adapter was saved on the way, with all that training leaves beside it"
    home = tmp_path_factory.mktemp("hub-steps") / "runs" / "mini"
    shutil.copytree(run, home)
    shutil.rmtree(home / "cards", ignore_errors=True)
    (home / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace(str(run), str(home))
    )
    for step in (10, 20, 100):
        place = home / "checkpoints" / "humanlm" / f"checkpoint-{step}"
        made, _tok = make_model(SMALL, ["the night tram is late", "the city tram is fine"] * 9)
        model = add_adapter(made, SMALL, home / "models" / "base")
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.data.fill_(step / 1000)
        model.save_pretrained(
            place, save_embedding_layers=False
        )  # as a trainer does: no config.json, the base as this machine names it
        for name in KEPT:
            atomic_write(place / name, "{}")
    stopped = home / "checkpoints/humanlm/checkpoint-110/model.safetensors"
    atomic_write(stopped, "half")
    return home


def test_checkpoints_are_published_beside_the_model_as_whole_weights(long_run, tmp_path):
    where = ("--hub.repo", "me/tram", "--hub.steps", "all", "--hub.out", tmp_path / "repo")
    done = command(long_run, "push", "mini", *where)
    assert done.returncode == 0, done.stderr
    found = {}
    for name in ("step-10", "step-20", "step-100"):
        files = {p.name for p in (tmp_path / "repo" / name).iterdir()}
        assert {"humanlm.json", "model.safetensors", "config.json", "tokenizer.json"} <= files
        assert not {*KEPT, "adapter_config.json", "adapter_model.safetensors"} & files
        found[name] = load_model(tmp_path / "repo" / name, device="cpu").model.state_dict()
    for a, b in (("step-10", "step-20"), ("step-20", "step-100")):
        assert not all(found[a][name].equal(found[b][name]) for name in found[a])
    assert not (tmp_path / "repo/step-110").exists() and (tmp_path / "repo/README.md").is_file()
    merged = ("push", "runs/mini/checkpoints/humanlm/checkpoint-10", "--hub.out", tmp_path / "ten")
    assert (done := command(long_run, *merged)).returncode == 0, done.stderr
    weights = [tmp_path / name / "model.safetensors" for name in ("ten", "repo/step-10")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
