"Merging and publishing: through the real client of the Hub, against a folder, against a hub on loopback, and against one that fails."

import base64
import json
import os
import shutil
import socket
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
from humanlm.methods.sampling import RolloutConfig
from humanlm.models.checkpoints import add_adapter, has_adapter, load_model, make_model, save_model
from humanlm.models.config import ModelConfig

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


REFUSED = {
    "whoami": 401,
    "/preupload/": 400,
    "validate-yaml": 400,
}  # a 500 there is asked again for half a minute


class Hub:
    "As much of the Hub as publishing needs; `refuse` names a step that fails"

    def __init__(self, refuse="", exists=False):
        hub, self.seen, self.files, self.repos, self.refuse = (
            self,
            [],
            {},
            {"me/tram"} if exists else set(),
            refuse,
        )
        self.commits, self.branches = [{}], {"main": 0}  # what each commit holds; branch → commit

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body=None):
                text = json.dumps(body or {}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            def do_GET(self):
                self.step()

            do_POST = do_DELETE = do_HEAD = do_GET

            def step(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.split("?")[0]
                hub.seen.append(f"{self.command} {path}")
                refuse = hub.refuse
                if refuse and refuse in f"{self.command} {path}":
                    return self.answer(REFUSED.get(refuse, 500), {"error": "no"})
                if path == "/api/whoami-v2":
                    return self.answer(
                        200,
                        {"name": "me", "type": "user", "auth": {"accessToken": {"role": "write"}}},
                    )
                if path == "/api/repos/create":
                    hub.repos.add("me/tram")
                    hub.private = json.loads(body).get("private") or json.loads(body).get(
                        "visibility"
                    )
                    return self.answer(200, {"url": f"{hub.url}/me/tram", "name": "me/tram"})
                if path == "/api/repos/delete":
                    hub.repos.discard("me/tram")
                    return self.answer(200)
                if path == "/api/validate-yaml":
                    return self.answer(200, {"errors": [], "warnings": []})
                if "/preupload/" in path:
                    files = [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for f in json.loads(body)["files"]
                    ]
                    return self.answer(200, {"files": files, "commitOid": "0"})
                if "/commit/" in path:
                    branch, new = path.rpartition("/")[2], {}
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            new[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    hub.commits.append(hub.commits[hub.branches[branch]] | new)
                    hub.branches[branch], number = len(hub.commits) - 1, len(hub.commits) - 1
                    if branch == "main":
                        hub.files = hub.commits[-1]
                    return self.answer(
                        200,
                        {
                            "success": True,
                            "commitUrl": f"{hub.url}/me/tram/commit/{number}",
                            "commitOid": str(number),
                        },
                    )
                if path.endswith("/refs"):
                    return self.answer(
                        200,
                        {
                            "branches": [
                                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": str(at)}
                                for name, at in hub.branches.items()
                            ],
                            "converts": [],
                            "tags": [],
                        },
                    )
                if "/branch/" in path:
                    branch = path.rpartition("/")[2]
                    if self.command == "DELETE":
                        hub.branches.pop(branch)
                    elif branch in hub.branches:
                        return self.answer(409, {"error": "there already"})
                    else:
                        hub.branches[branch] = int(
                            json.loads(body or b"{}").get("startingPoint", hub.branches["main"])
                        )
                    return self.answer(200)
                if path == "/api/models/me/tram":
                    return self.answer(200 if "me/tram" in hub.repos else 404, {"id": "me/tram"})
                self.answer(404)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def command(run, *args, endpoint="http://127.0.0.1:9", **env):
    "Run `python -m humanlm.hub` as somebody would"
    return warm.run("-m", "humanlm.hub", *args, env=somebody(endpoint) | env, cwd=run.parent.parent)


def somebody(endpoint: str) -> dict[str, str]:
    return os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "hf_secret",
        "PYTHONPATH": str(ROOT),
    }


# ---- the card


def test_a_dry_run_writes_nothing_and_asks_nobody(run):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    with Hub() as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", "--dry-run", endpoint=hub.url)
    assert done.returncode == 0 and hub.seen == [], done.stderr
    assert (
        "nothing was written or published" in done.stdout
        and "README.md" in done.stdout
        and "humanlm.json" in done.stdout
    )
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


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


def test_the_hubs_own_library_reads_the_head_of_a_card(run, tmp_path):
    from huggingface_hub import ModelCard
    from huggingface_hub.repocard import metadata_load

    assert (
        command(
            run, "push", "mini", "--hub.repo", "me/tram", "--hub.out", tmp_path / "read"
        ).returncode
        == 0
    )
    place = run / "cards" / "humanlm.md"
    card = ModelCard(place.read_text())
    assert (
        card.data.license,
        card.data.library_name,
        card.data.pipeline_tag,
        card.data.base_model,
    ) == ("apache-2.0", "transformers", "text-generation", None)
    assert (
        "humanlm" in card.data.tags
        and metadata_load(place) == card.data.to_dict()
        and card.text.lstrip().startswith("# tram")
    )


def test_the_hub_validates_a_card_before_anything_is_sent(run):
    with Hub() as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    steps = [
        line
        for line in hub.seen
        if "validate-yaml" in line or "/preupload/" in line or "/commit/" in line
    ]
    assert done.returncode == 0 and "validate-yaml" in steps[0], (done.stderr, hub.seen)
    with Hub("validate-yaml") as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    assert (
        done.returncode != 0
        and "README.md" in done.stderr
        and "Traceback" not in done.stderr
        and not hub.files
    ), done.stderr


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
    done = command(run, "merge", run / "models" / "humanlm", "--hub.out", tmp_path / "plain")
    assert (
        done.returncode == 0
        and (tmp_path / "plain/humanlm.json").read_text()
        == (run / "models/humanlm/humanlm.json").read_text()
    ), done.stderr
    again = command(run, "merge", tmp_path / "plain", "--hub.out", tmp_path / "other")
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
    assert {
        "README.md",
        "humanlm.json",
        "hierarchy.json",
        "model.safetensors",
        "config.json",
        "chat_template.jinja",
    } <= set(hub.files)
    assert hub.files["README.md"].decode() == (
        run / "cards/humanlm.md"
    ).read_text() and hub.private in (True, "private")
    assert (
        sum("/commit/" in step for step in hub.seen) == 1
        and "hf_secret" not in done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    "step, exists, said, left",
    [
        ("whoami", False, "does not know you. Next: hf auth login", set()),
        ("/api/repos/create", False, "could not be asked", set()),
        ("/preupload/", False, "could not be asked", set()),
        ("/commit/", False, "could not be asked", set()),
        ("/commit/", True, "could not be asked", {"me/tram"}),
    ],
)
def test_nothing_is_left_half_done(run, step, exists, said, left):
    with Hub(step, exists) as hub:
        done = command(run, "push", "mini", "--hub.repo", "me/tram", endpoint=hub.url)
    assert (
        done.returncode == 2
        and f"Nothing was published. The Hub at {hub.url} {said}" in done.stderr
    ), done.stderr
    assert (
        hub.files == {}
        and hub.repos == left
        and "Traceback" not in done.stderr
        and "hf_secret" not in done.stderr
    )


def test_a_hub_that_cannot_be_reached_is_said(run):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = command(
        run, "push", "mini", "--hub.repo", "me/tram", endpoint=f"http://127.0.0.1:{port}"
    )
    assert (
        done.returncode == 2
        and "Nothing was published" in done.stderr
        and "Check the network, HF_ENDPOINT" in done.stderr
    )
    done = command(run, "push", "mini", "--hub.repo", "me/tram", HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and "HF_HUB_OFFLINE" in done.stderr


def test_a_hub_that_says_nothing_is_not_waited_for_forever(run, tmp_path):
    script = tmp_path / "push.py"
    script.write_text(
        "import sys, humanlm.hub as h; h.PATIENCE = 1.0; sys.exit(h.main(['push', "
        "'mini', '--hub.repo', 'me/tram']))"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = somebody(f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = warm.run(script, env=env, cwd=run.parent.parent)
    assert (
        done.returncode == 2 and "Nothing was published" in done.stderr and "Timeout" in done.stderr
    )


@pytest.mark.parametrize(
    "args, said",
    [
        (["push", "mini"], "Where to? Give --hub.repo"),
        (["push", "--hub.repo", "me/tram"], "Which model?"),
        (["pull", "mini"], "Unknown command"),
        (["push", "mini", "--hub.repo", "tram"], "must be ORG/NAME"),
        (["merge", "mini"], "Where to? Give --hub.out"),
        (["push", "nowhere", "--hub.repo", "me/tram"], "holds no model"),
    ],
)
def test_the_command_says_what_is_missing(run, args, said, monkeypatch, capsys):
    from humanlm.hub import main

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
    atomic_write(
        home / "checkpoints/humanlm/checkpoint-110/model.safetensors", "half"
    )  # stopped while it was written
    atomic_write(home / "checkpoints/humanlm/broken-checkpoint-5/model.safetensors", "moved aside")
    return home


def steps_of(hub):
    return sorted(
        (name for name in hub.branches if name[5:].isdecimal()), key=lambda name: int(name[5:])
    )


def test_each_checkpoint_is_a_branch_of_whole_weights_and_the_last_is_on_main(long_run, tmp_path):
    with Hub() as hub:
        done = command(
            long_run,
            "push",
            "mini",
            "--hub.repo",
            "me/tram",
            "--hub.steps",
            "all",
            endpoint=hub.url,
        )
    assert done.returncode == 0 and "published   step-10, step-20, step-100" in done.stdout, (
        done.stdout + done.stderr
    )
    assert (
        {*hub.branches} == {"main", "step-10", "step-20", "step-100"}
        and hub.branches["main"] == hub.branches["step-100"]
        and hub.private in (True, "private")
    )
    found = {}
    for branch in steps_of(hub):
        files = hub.commits[hub.branches[branch]]
        assert not {*KEPT, "adapter_config.json", "adapter_model.safetensors"} & {*files} and {
            "README.md",
            "humanlm.json",
            "model.safetensors",
            "config.json",
            "tokenizer.json",
        } <= {*files}
        for name, content in files.items():
            (tmp_path / branch / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / branch / name).write_bytes(content)
        assert f"Checkpoint of step {branch[5:]} of `humanlm`" in files[
            "README.md"
        ].decode() and str(long_run.parent).encode() not in b"".join(files.values())
        loaded = load_model(tmp_path / branch, device="cpu").model
        assert not has_adapter(loaded)
        found[branch] = {name: value.clone() for name, value in loaded.state_dict().items()}
    assert not any(
        all(found[a][name].equal(found[b][name]) for name in found[a])
        for a, b in (("step-10", "step-20"), ("step-20", "step-100"))
    )


@pytest.mark.parametrize(
    "refuse, there",
    [
        ("POST /api/models/me/tram/branch/step-20", ["step-10"]),
        ("POST /api/models/me/tram/commit/main", ["step-10", "step-20"]),
        ("POST /api/models/me/tram/branch/step-100", ["step-10", "step-20"]),
    ],
)
def test_what_was_stopped_is_gone_on_with_and_nothing_is_uploaded_twice(long_run, refuse, there):
    push = ("push", "mini", "--hub.repo", "me/tram", "--hub.steps", "all")
    with Hub(refuse) as hub:
        first = command(long_run, *push, endpoint=hub.url)
        assert (
            first.returncode == 2
            and f"Published by now: {', '.join(there)}; the same command goes on" in first.stderr
        ), first.stderr
        assert (
            steps_of(hub) == there and hub.repos == {"me/tram"} and "step-100" not in hub.branches
        )
        hub.refuse, before = "", len(hub.seen)
        second = command(long_run, *push, endpoint=hub.url)
        commits = sum("/commit/" in step for step in hub.seen[before:])
        third, again = command(long_run, *push, endpoint=hub.url), len(hub.commits)
    assert (
        second.returncode == 0 == third.returncode
        and commits == 3 - len(there)
        and "step-10 (was there)" in second.stdout
    )
    assert (
        {*hub.branches} == {"main", "step-10", "step-20", "step-100"}
        and hub.branches["main"] == hub.branches["step-100"]
        and len(hub.commits) == again
    )


def test_a_repository_made_in_vain_for_checkpoints_is_removed(long_run):
    with Hub("/commit/") as hub:
        done = command(
            long_run,
            "push",
            "mini",
            "--hub.repo",
            "me/tram",
            "--hub.steps",
            "all",
            endpoint=hub.url,
        )
    assert done.returncode == 2 and "Nothing was published" in done.stderr and hub.repos == set()


def test_an_earlier_checkpoint_never_takes_the_place_of_a_later_one_on_main(long_run):
    with Hub() as hub:
        for steps in ("100", "[10,20]"):
            assert (
                command(
                    long_run,
                    "push",
                    "mini",
                    "--hub.repo",
                    "me/tram",
                    "--hub.steps",
                    steps,
                    endpoint=hub.url,
                ).returncode
                == 0
            )
    assert hub.branches["main"] == hub.branches["step-100"] and {*hub.branches} == {
        "main",
        "step-10",
        "step-20",
        "step-100",
    }


def test_a_dry_run_of_checkpoints_writes_nothing_and_asks_nobody(long_run):
    before = {p: p.stat().st_mtime_ns for p in long_run.rglob("*")}
    with Hub() as hub:
        done = command(
            long_run,
            "push",
            "mini",
            "--hub.repo",
            "me/tram",
            "--hub.steps",
            "all",
            "--dry-run",
            endpoint=hub.url,
        )
    assert (
        done.returncode == 0
        and hub.seen == []
        and "step-100, main" in done.stdout
        and "110" not in done.stdout
        and "nothing was written or published" in done.stdout
    ), done.stderr
    assert {p: p.stat().st_mtime_ns for p in long_run.rglob("*")} == before


@pytest.mark.parametrize(
    "steps, said",
    [
        ("[10,30]", "no checkpoint 30"),
        ("every", "steps must be all"),
        ("[0]", "steps must be all"),
        ("110", "no checkpoint 110"),
    ],
)
def test_checkpoints_that_are_not_there_are_named(long_run, steps, said):
    with Hub() as hub:
        done = command(
            long_run,
            "push",
            "mini",
            "--hub.repo",
            "me/tram",
            "--hub.steps",
            steps,
            endpoint=hub.url,
        )
    assert done.returncode == 2 and said in done.stderr and hub.seen == []


def test_of_a_plain_checkpoint_weights_alone_leave_the_run(long_run, tmp_path):
    place = long_run / "checkpoints" / "base" / "checkpoint-7"
    model, tok = make_model(SMALL, ["the night tram is late", "the city tram is fine"] * 9, seed=5)
    save_model(model, tok, place)
    for name in KEPT:
        atomic_write(place / name, "{}")
    done = command(
        long_run,
        "push",
        "runs/mini/models/base",
        "--hub.repo",
        "me/tram",
        "--hub.steps",
        "7",
        "--hub.out",
        tmp_path / "repo",
    )
    assert done.returncode == 0, done.stderr
    sent, finished = (
        {p.relative_to(at).as_posix() for p in at.rglob("*") if p.is_file()}
        for at in (tmp_path / "repo/step-7", long_run / "models/base")
    )
    assert sent == finished | {"README.md"} and not any(
        p.is_symlink() for p in (tmp_path / "repo").rglob("*")
    )
    same = [
        value.equal(model.state_dict()[name])
        for name, value in load_model(tmp_path / "repo/step-7", device="cpu")
        .model.state_dict()
        .items()
    ]
    assert all(same), "the checkpoint's weights, not the finished model's"
