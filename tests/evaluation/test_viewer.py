"Any run of any recipe on a page, while it grows, whatever it holds."

import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import warm
import yaml
from pages import CHROMIUM, HOSTILE, in_browser, read

from humanlm.core.basics import DataError, write_jsonl
from humanlm.core.records import Example, Message, Persona
from humanlm.core.trajectory import Score, Trajectory, Turn
from humanlm.core.web import serving_app
from humanlm.evaluation.index import (
    Choice,
    Records,
    load_trajectories,
    run_records,
    save_trajectories,
)
from humanlm.evaluation.viewer import RunViewer
from humanlm.view import _context_html

MINI = Path(__file__).resolve().parents[2] / "nbs" / "recordings" / "humanlm-mini"
SMALL = {
    "model": {"hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64, "vocab": 420},
    "rollout": {"num_prompts": 2},
    "trainer": {"max_steps": 2, "logging_steps": 1},
}
RECIPES = {
    "sdpo": {
        "sft": {"lesson_steps": 3, "batch": 4},
        "prompts": {"test_n": 2, "max_tokens": 16},
        "user": {"tastes": ["casual"], "steps_each": 2},
    },
    "gyms": {
        "gyms": {
            "train": ["function"],
            "tasks": 4,
            "test_n": 2,
            "max_turns": 3,
            "turn_tokens": 12,
            "max_tokens": 90,
            "system": False,
        },
        "sft": {"lesson_steps": 3, "batch": 4},
        "rollout": {"num_prompts": 2, "group_size": 2},
    },
    "classmate": {
        "classmate": {"models": ["reader"], "max_tokens": 6},
        "tasks": {"train_n": 12, "test_n": 2, "max_tokens": 24},
        "sft": {"lesson_steps": 3, "reader_steps": 2, "batch": 4},
        "rollout": {"num_prompts": 2, "group_size": 2},
    },
}


def rollout(n=0, text="for it", **more) -> Trajectory:
    score = Score("0", 0.5, "scored", more.pop("reason", "because"), ("point",), (0.5,))
    given = {
        "group": 0,
        "step": 0,
        "level": "stance",
        "turns": (Turn("policy", text, (0, 1)),),
        "rewards": {"alignment": 0.5},
        "advantage": 1.0,
    } | more
    return Trajectory(
        f"{n}",
        given.pop("row_id", f"r{n}"),
        given.pop("group"),
        given.pop("step"),
        given.pop("level"),
        given.pop("turns"),
        [1],
        [2],
        [True],
        text=text,
        parse_status=given.pop("parse_status", "ok"),
        scores={more.get("level", "stance"): score},
        **given,
    )


def save(folder, step, found, stage="humanlm"):
    "Write a step of a run as training does"
    place = folder / "trajectories" / stage
    place.mkdir(parents=True, exist_ok=True)
    return save_trajectories(place / f"step-{step:06d}-0.parquet", found)


def get(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def every(records, choice=Choice(), limit=7):
    "All records of a choice, page by page"
    found = records.find(choice, limit=limit)
    rows = [*found.rows]
    while found.after:
        rows += (found := records.find(choice, found.after, limit)).rows
    return rows


# ---- runs of every recipe


@pytest.fixture(scope="module", params=RECIPES)
def trained(request, tmp_path_factory):
    folder, name = tmp_path_factory.mktemp("viewed"), request.param
    groups = {
        group: SMALL.get(group, {}) | RECIPES[name].get(group, {})
        for group in SMALL | RECIPES[name]
    } | {"run": {"recipe": name, "name": name, "out": str(folder)}}
    (folder / "s.yaml").write_text(yaml.safe_dump(groups))
    done = warm.run("-m", "humanlm.train", "--config", folder / "s.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return name, folder / name


def test_a_run_of_every_recipe_is_listed_and_opened_over_http(trained):
    name, folder = trained
    with serving_app(RunViewer(folder, also=_context_html).app()) as url:
        status, page = get(url)
        assert status == 200 and page.count('class="item"') > 0
        part = next(
            part for part, records in run_records(folder).items() if records.kind == ".parquet"
        )
        rows = every(run_records(folder)[part])
        assert len(rows) == len(load_trajectories(folder / part))
        status, record = get(
            f"{url}/?{urllib.parse.urlencode({'of': f'{name}: {part}', 'at': rows[-1].at})}"
        )
        assert (
            status == 200 and "tokens by advantage" in record and "font:13px/2 monospace" in record
        ), "the run keeps its tokenizer, so tokens are shown"
        read(page), read(record)
        for other, records in run_records(folder).items():
            for row in records.find(limit=2).rows:
                assert (
                    get(
                        f"{url}/?{urllib.parse.urlencode({'of': f'{name}: {other}', 'at': row.at})}"
                    )[0]
                    == 200
                )
        if name == "sdpo":
            assert (
                "the user, next" in record
                and "hindsight - plain" in record
                and get(
                    f"{url}/?"
                    + urllib.parse.urlencode(
                        {
                            "of": f"{name}: {part}",
                            "at": rows[-1].at,
                            "colour": "hindsight - plain",
                        }
                    )
                )[1].count("<b>hindsight - plain</b>")
                == 1
            )
        if name == "gyms":
            assert "reward " in record and "<b>user</b>" in record
        if name == "classmate":
            assert (
                "<b>classmate</b>" in record
                and "text-decoration:underline"
                in record
                + get(
                    f"{url}/?{urllib.parse.urlencode({'of': f'{name}: {part}', 'at': rows[0].at})}"
                )[1]
            )


def test_judged_states_have_persona_truth_score_and_reason():
    viewer = RunViewer(MINI)
    page = viewer.page({"of": "humanlm-mini: evaluations/humanlm", "at": "0"})
    text = read(page).text
    assert all(
        word in text
        for word in (
            "nobody should go without",
            "customs should be kept",
            "tradition",
            "opposite or negated stance",
            "most collects gadgets",
        )
    )


# ---- what is chosen is what is shown


def test_lines_are_found_by_text_number_and_status(tmp_path):
    rows = [
        {
            "unit": f"u{n}",
            "stop": "done" if n % 2 else "length",
            "values": {"share": {"all": n / 10}},
            "shown": {"reply": f'Nr. {n} "é"'},
        }
        for n in range(30)
    ]
    lines = Records(write_jsonl(tmp_path / "measured.jsonl", rows), ".jsonl")

    def keys(**choice):
        return [row.key for row in every(lines, Choice(**choice))]

    assert keys() == [row["unit"] for row in rows] and keys(
        status="done", number="values share all", low=2.0
    ) == ["u21", "u23", "u25", "u27", "u29"]
    assert (
        keys(search='nr. 7 "É') == keys(search="nr. 7 ") == ["u7"]
        and keys(search="share") == []
        and keys(keys=frozenset(["u3"])) == ["u3"]
    )


def test_the_log_of_training_is_a_table(tmp_path):
    rows = [
        {"stage": stage, "step": step, "loss": 0.25, "num_tokens": 14950.0}
        for stage in ("cold-start", "humanlm")
        for step in range(60)
    ]
    write_jsonl(tmp_path / "a" / "metrics.jsonl", rows)
    viewer = RunViewer(tmp_path / "a")
    page = viewer.page({"of": "a: metrics", "level": "humanlm"})
    assert page.count("<tr") == 61 and "14,950" in page and "cold-start</a>" not in page
    assert "loss</th>" in page and "<b>0</b>" not in page
    at = run_records(tmp_path / "a")["metrics"].find(limit=1, start="").rows[0].at
    assert "<h2>cold-start</h2>" in viewer.page({"of": "a: metrics", "at": at})


# ---- runs that grow, break or are not there


def test_what_a_run_writes_while_it_is_shown_is_found(tmp_path):
    with serving_app(RunViewer(tmp_path).app()) as url:
        assert "No records yet" in get(url)[1]
        save(tmp_path, 0, [rollout(0, "first words")])
        assert "first words" in get(url)[1]
        save(tmp_path, 1, [rollout(1, "later words")])
        (tmp_path / "trajectories" / "humanlm" / ".step-000002-0.parquet.ab12").mkdir()
        page = get(url)[1]
        assert "first words" in page and "later words" in page
        save(tmp_path, 1, [rollout(1, "written again")])
        page = get(url)[1]
        assert "written again" in page and "later words" not in page


@pytest.mark.parametrize("damage", ["ends", "middle", "foreign", "empty"])
def test_a_broken_file_is_named_and_the_rest_is_shown(tmp_path, damage):
    path = save(tmp_path, 0, [rollout(n, "x" * 200) for n in range(50)])
    save(tmp_path, 1, [rollout(99, "still here")])
    data = bytearray(path.read_bytes())
    if damage == "ends":
        path.write_bytes(data[: len(data) // 2])
    if damage == "middle":
        path.write_bytes(bytes(4) + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    if damage == "empty":
        path.write_bytes(b"")
    if damage == "foreign":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"prompt": ["x"]}), path)
    page = RunViewer(tmp_path).page({})
    assert (
        "still here" in page and "1 could not be read" in page and "step-000000-0.parquet" in page
    )
    with pytest.raises(DataError):
        RunViewer(tmp_path).page({"at": "step-000000-0.parquet:0"})


def test_only_this_machine_is_answered_and_nothing_runs_or_loads():
    with serving_app(RunViewer(MINI).app()) as url:
        assert get(url, Host="evil.test")[0] == get(url, Origin="http://evil.test")[0] == 403
        with urllib.request.urlopen(url) as reply:
            assert (
                "default-src 'none'" in reply.headers["Content-Security-Policy"]
                and "src=" not in (page := reply.read().decode())
                and "http://" not in page
            )


# ---- what others wrote


def hostile_run(folder, texts):
    "A run whose every text attacks"
    save(
        folder,
        0,
        [
            rollout(
                n,
                text,
                row_id=text,
                level=text,
                reason=text,
                parse_status=text,
                turns=(Turn("policy", text, (0, 1)), Turn(text, text, (1, 1), 0.5)),
                fields={text: text},
                errors=(text,),
                example_id=text,
                user_id=text,
            )
            for n, text in enumerate(texts)
        ],
    )

    def person(text):
        return Example(
            text,
            text,
            "test",
            text,
            text,
            Persona(text, text),
            (Message("0", name=text, content=text),),
            text,
            states={text: text},
        )

    write_jsonl(folder / "examples.jsonl", [person(text) for text in texts])
    (folder / "episodes").mkdir()
    write_jsonl(
        folder / "episodes" / "x.jsonl",
        [{"task": text, text: [{text: text}, {"b": [text]}], "stop": text} for text in texts],
    )
    return folder


def test_what_models_wrote_stays_text(tmp_path):
    texts = [text for text in HOSTILE if text != "\ud800"]
    viewer = RunViewer(
        hostile_run(tmp_path / "run", texts),
        tmp_path / "run" / "episodes" / "x.jsonl",
        also=_context_html,
    )
    for of, (_, _, records) in viewer.sources().items():
        read(viewer.page({"of": of}))
        for row in records.find().rows:
            read(viewer.page({"of": of, "at": row.at, "search": row.text[:9]}))
    for text in texts:
        with pytest.raises(DataError):
            viewer.page({"of": text})
        read(viewer.page(dict.fromkeys(("search", "level", "status", "number", "colour"), text)))


def test_a_text_without_end_and_a_nest_without_ground_are_bounded(tmp_path):
    save(tmp_path, 0, [rollout(0, "long " * 200_000, errors=("e" * 100_000,) * 3)])
    deep = row = {}
    for _ in range(300):
        row["in"] = row = {}
    write_jsonl(
        tmp_path / "odd.jsonl",
        [{"id": "deep", "x": deep}, {"id": "wide", "x": {f"n{n}": n for n in range(100_000)}}],
    )
    viewer = RunViewer(tmp_path)
    for of in viewer.sources():
        for row in viewer.sources()[of][2].find().rows:
            assert len(viewer.page({"of": of, "at": row.at})) < 100_000


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium or Chrome: apt install chromium")
def test_no_text_runs_in_a_real_browser(tmp_path):
    attacks = [
        "<script>document.title = 'ran'</script>",
        "<img src=x onerror=\"document.title = 'ran'\">",
        '"><svg onload="document.title = \'ran\'">',
        "' autofocus onfocus='document.title = 1",
    ]
    viewer = RunViewer(hostile_run(tmp_path / "run", attacks))
    listed, opened = (
        viewer.page(
            {"of": "run: trajectories/humanlm", "search": attacks[2], "level": attacks[0], **more}
        )
        for more in ({}, {"at": "step-000000-0.parquet:2"})
    )
    for name, page in (("listed", listed), ("opened", opened)):
        (tmp_path / name).mkdir()
        shown = in_browser(page.replace("Content-Security-Policy", "X-Nothing"), tmp_path / name)
        assert "<title>run: viewer</title>" in shown, "a text ran as a script"
        assert not any(f"<{tag}" in shown.split("</title>")[1] for tag in ("script", "img", "svg"))
