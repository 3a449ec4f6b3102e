"Merging and publishing: through the real client of the Hub, against a folder, against a hub on loopback, and against one that fails."
import base64, json, os, socket, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import warm
import yaml

from humanlm.core.basics import atomic_write
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.weights import ModelConfig, add_adapter, has_adapter, load_model, make_model, save_model
from humanlm.alignment.contract import contract
from humanlm.alignment.simulator import Simulator
from humanlm.training.rollout import RolloutConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = ModelConfig(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=500, lora_rank=4)
ASKED = HierarchyConfig(levels=["stance", "response"], thinking="hetero", response_tokens=9, state_tokens=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    "What a run with an adapter leaves"
    home = tmp_path_factory.mktemp("hub") / "runs" / "mini"
    model, tok = make_model(SMALL, ["the night tram is late", "the city tram is fine"] * 9)
    beside = contract(SMALL, ASKED, RolloutConfig(), "humanlm", "politics")
    base = save_model(model, tok, home / "models" / "base", beside)
    save_model(add_adapter(model, SMALL, base), tok, home / "models" / "humanlm", beside)
    atomic_write(home / "config.yaml", f"run: {{methods: [humanlm], out: {home.parent}}}\ndata: {{source: miniworld}}\nmodel: {{name: tiny}}\n"
                 f"judge: {{model: oracle}}\ntest_judge: {{model: rule}}\nhierarchy: {{path: {home}/levels.json, thinking: hetero}}\n")
    atomic_write(home / "run.json", json.dumps({"seed": 3, "versions": {"torch": "2"}, "judges": {"training": {"model": "oracle"}, "test": {"model": "rule"}}}))
    rows = [dict(model=m, metric="response_alignment", level="all", n=6, mean=v, low=v, high=v) for m, v in (("base", 0.1), ("humanlm", 0.52))]
    atomic_write(home / "results.json", json.dumps({"rows": rows, "paired": []}))
    atomic_write(home / "data.md", "# Data set\n\n| split | replies |\n|---|---|\n| train | 214 |\n\nSynthetic: made by a program.\n")
    return home


REFUSED = {"whoami": 401, "/preupload/": 400}  # a 500 there is asked again for half a minute


class Hub:
    "As much of the Hub as publishing needs; `refuse` names a step that fails"
    def __init__(self, refuse="", exists=False):
        hub, self.seen, self.files, self.repos = self, [], {}, {"me/tram"} if exists else set()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_): pass

            def answer(self, status, body=None):
                text = json.dumps(body or {}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if status == 404: self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD": self.wfile.write(text)

            def do_GET(self): self.step()
            do_POST = do_DELETE = do_HEAD = do_GET

            def step(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.split("?")[0]
                hub.seen.append(f"{self.command} {path}")
                if refuse and refuse in path: return self.answer(REFUSED.get(refuse, 500), {"error": "no"})
                if path == "/api/whoami-v2": return self.answer(200, {"name": "me", "type": "user", "auth": {"accessToken": {"role": "write"}}})
                if path == "/api/repos/create":
                    hub.repos.add("me/tram")
                    hub.private = json.loads(body).get("private") or json.loads(body).get("visibility")
                    return self.answer(200, {"url": f"{hub.url}/me/tram", "name": "me/tram"})
                if path == "/api/repos/delete": hub.repos.discard("me/tram"); return self.answer(200)
                if path == "/api/validate-yaml": return self.answer(200, {"errors": [], "warnings": []})
                if "/preupload/" in path:
                    files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]]
                    return self.answer(200, {"files": files, "commitOid": "0"})
                if "/commit/" in path:
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file": hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    return self.answer(200, {"success": True, "commitUrl": f"{hub.url}/me/tram/commit/1", "commitOid": "1"})
                if path == "/api/models/me/tram": return self.answer(200 if "me/tram" in hub.repos else 404, {"id": "me/tram"})
                self.answer(404)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self): return self
    def __exit__(self, *_): self.server.shutdown()


def command(run, *args, endpoint="http://127.0.0.1:9", **env):
    "Run `python -m humanlm.hub` as somebody would"
    return warm.run("-m", "humanlm.hub", *args, env=somebody(endpoint) | env, cwd=run.parent.parent)


def somebody(endpoint: str) -> dict[str, str]:
    return os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_secret", "PYTHONPATH": str(ROOT)}


# ---- the card

def test_a_dry_run_writes_nothing_and_asks_nobody(run):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    with Hub() as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", "--dry-run", endpoint=hub.url)
    assert done.returncode == 0 and hub.seen == [], done.stderr
    assert "nothing was written or published" in done.stdout and "README.md" in done.stdout and "humanlm.json" in done.stdout
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_a_card_says_what_is_known_and_no_more(run, tmp_path):
    done = command(run, "push", "mini", "--hub.repo", "me/tram", "--hub.out", tmp_path / "card")
    assert done.returncode == 0, done.stderr
    card = (run / "cards" / "humanlm.md").read_text()
    head, text = card.split("---\n")[1:3][0], card.split("---\n", 2)[2]
    assert yaml.safe_load(head) | {"tags": 0} == {"license": "apache-2.0", "library_name": "transformers", "pipeline_tag": "text-generation", "tags": 0}
    for said in ("Synthetic world", "Rule judge", "Toy model", "training: oracle; test: rule", "| humanlm | 6 | 0.52", "| train | 214 |", "Seed 3; torch 2",
                 "| `response` | `</response>` |", 'hierarchy.thinking: "hetero"', "python -m humanlm.serve --model.name me/tram"):
        assert said in text, said
    assert str(run.parent) not in card and "hf_secret" not in card


# ---- into a folder

def test_what_is_published_can_be_used_without_its_run(run, tmp_path):
    done = command(run, "push", "mini", "--hub.repo", "me/tram", "--hub.out", tmp_path / "repo")
    assert done.returncode == 0, done.stderr
    here, there = load_model(run / "models/humanlm", device="cpu"), load_model(tmp_path / "repo", device="cpu")
    assert has_adapter(here.model) and not has_adapter(there.model) and (tmp_path / "repo/README.md").read_text().startswith("---\nlicense")
    ours, theirs = Simulator(run, "likes tea"), Simulator(tmp_path / "repo", "likes tea")
    assert theirs.client.setup.hierarchy.load() == ours.client.setup.hierarchy.load() and theirs.source == "politics" and theirs.sampling == ours.sampling
    assert theirs.reply("tea?") == ours.reply("tea?")


def test_merging_makes_a_plain_folder(run, tmp_path):
    done = command(run, "merge", run / "models" / "humanlm", "--hub.out", tmp_path / "plain")
    assert done.returncode == 0 and (tmp_path / "plain/humanlm.json").read_text() == (run / "models/humanlm/humanlm.json").read_text(), done.stderr
    again = command(run, "merge", tmp_path / "plain", "--hub.out", tmp_path / "other")
    assert again.returncode == 2 and "plain model already" in again.stderr and not (tmp_path / "other").exists()


# ---- to a hub

def test_a_model_is_published_in_one_commit(run):
    with Hub() as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    assert done.returncode == 0 and f"published   {hub.url}/me/tram/commit/1" in done.stdout, done.stderr
    assert {"README.md", "humanlm.json", "hierarchy.json", "model.safetensors", "config.json", "chat_template.jinja"} <= set(hub.files)
    assert hub.files["README.md"].decode() == (run / "cards/humanlm.md").read_text() and hub.private in (True, "private")
    assert sum("/commit/" in step for step in hub.seen) == 1 and "hf_secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("step, exists, said, left", [
    ("whoami", False, "does not know you. Next: hf auth login", set()), ("/api/repos/create", False, "could not be asked", set()),
    ("/preupload/", False, "could not be asked", set()), ("/commit/", False, "could not be asked", set()),
    ("/commit/", True, "could not be asked", {"me/tram"})])
def test_nothing_is_left_half_done(run, step, exists, said, left):
    with Hub(step, exists) as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    assert done.returncode == 2 and f"Nothing was published. The Hub at {hub.url} {said}" in done.stderr, done.stderr
    assert hub.files == {} and hub.repos == left and "Traceback" not in done.stderr and "hf_secret" not in done.stderr


def test_a_hub_that_cannot_be_reached_is_said(run):
    with socket.create_server(("127.0.0.1", 0)) as free: port = free.getsockname()[1]
    done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=f"http://127.0.0.1:{port}")
    assert done.returncode == 2 and "Nothing was published" in done.stderr and "Check the network, HF_ENDPOINT" in done.stderr
    done = command(run, "push", "mini", "--hub.repo", "me/tram", HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "HF_HUB_OFFLINE" in done.stderr


def test_a_hub_that_says_nothing_is_not_waited_for_forever(run, tmp_path):
    script = tmp_path / "push.py"
    script.write_text("import sys, humanlm.hub as h; h.PATIENCE = 1.0; sys.exit(h.main(['push', 'mini', '--hub.repo', 'me/tram']))")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = somebody(f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = warm.run(script, env=env, cwd=run.parent.parent)
    assert done.returncode == 2 and "Nothing was published" in done.stderr and "Timeout" in done.stderr


@pytest.mark.parametrize("args, said", [
    (["push", "mini"], "Where to? Give --hub.repo"), (["push", "--hub.repo", "me/tram"], "Which model?"), (["pull", "mini"], "Unknown command"),
    (["push", "mini", "--hub.repo", "tram"], "must be ORG/NAME"), (["merge", "mini"], "Where to? Give --hub.out"),
    (["push", "nowhere", "--hub.repo", "me/tram"], "holds no model")])
def test_the_command_says_what_is_missing(run, args, said, monkeypatch, capsys):
    from humanlm.hub import main
    monkeypatch.chdir(run.parent.parent)
    assert main(args) == 2 and said in capsys.readouterr().err
