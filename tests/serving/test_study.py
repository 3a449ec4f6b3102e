"A user study over HTTP and in a browser: nothing kept is lost, all is blind and deletable."

import csv
import http.cookiejar
import math
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import HOSTILE, TAGS, Reader

from humanlm.core.basics import write_jsonl
from humanlm.core.commands import main
from humanlm.hierarchy.levels import STATES
from humanlm.serving.items import StudyConfig, StudyItem, study_items
from humanlm.serving.ratings import study_ratings
from humanlm.serving.survey import StudyAnswers, _new_code, _Survey

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("model-alpha", "model-beta", "model-gamma")
ITEMS = [
    {
        "id": f"i{n}",
        "context": [
            {"role": "user", "name": "bo", "content": f"Shall we build a bridge, number {n}?"},
            {"role": "user", "name": "HUMAN", "content": "And a pier?"},
        ],
        "replies": {
            name: f"Reply {k} to number {n}: "
            f"{'why not, it is near' if k else 'no, it costs too much'}."
            for k, name in enumerate(MODELS)
        },
        "judged": {"model-alpha": 0.2, "model-beta": 0.5, "model-gamma": None},
    }
    for n in range(3)
]
TICKS = {"consent": "yes"}


class Serving:
    "`humanlm study serve`, as somebody would start it"

    def __init__(self, folder: Path, *words, port: int = 0):
        self.folder, self.words = folder, words
        self.begin(port)

    def begin(self, port: int):
        command = [
            sys.executable,
            "-m",
            "humanlm",
            "study",
            "serve",
            "--study.out",
            self.folder / "study",
            "--study.port",
            port,
            *self.words,
        ]
        self.process = subprocess.Popen(
            [*map(str, command)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        lines = iter(self.process.stdout.readline, "")
        self.said = []
        for line in lines:
            self.said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/ ", line):
                break
        else:
            raise AssertionError("".join(self.said))
        self.port, self.url = int(found[1]), f"http://127.0.0.1:{found[1]}"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()


class Visitor:
    "A browser with its cookies, that follows redirections"

    def __init__(self, url):
        self.url, self.jar = url, http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))

    def ask(self, path, form=None, **headers):
        data = (
            form
            if isinstance(form, bytes)
            else urllib.parse.urlencode(form).encode()
            if form is not None
            else None
        )
        try:
            answer = self.opener.open(
                urllib.request.Request(self.url + path, data, headers), timeout=120
            )
        except urllib.error.HTTPError as e:
            answer = e
        with answer:
            return answer.status, urllib.parse.urlsplit(answer.url).path, answer.read().decode()

    def start(self, **more):
        return self.ask("/start", TICKS | {"code": _new_code()} | more)[:2]

    def reply(self, n, text="Because it is near."):
        return self.ask(f"/item/{n}/reply", {"reply": text})

    def states(self, n):
        return self.ask(f"/item/{n}/states", {name: f"own {name}" for name in STATES})

    def rate(self, n, **more):
        scores = {
            f"{scale}_{letter}": 3 + i
            for i, letter in enumerate("ABC")
            for scale in ("similarity", "human")
        }
        return self.ask(
            f"/item/{n}/ratings",
            scores
            | {
                "rank_A": 3,
                "rank_B": 2,
                "rank_C": 1,
                "comparison": "They are all shorter than mine.",
                "rank_reason": "By what they say.",
                "human_reason": "All of them.",
            }
            | more,
        )

    def item(self, n):
        return [self.reply(n)[:2], self.states(n)[:2], self.rate(n)[:2]]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_jsonl(folder / "items.jsonl", ITEMS)
    return folder


@pytest.fixture(scope="module")
def serving(home):
    with Serving(
        home, "--study.items", home / "items.jsonl", "--study.words", 0.1, "--study.per_person", 2
    ) as process:
        yield process


def kept_of(serving) -> StudyAnswers:
    return StudyAnswers(serving.folder / "study")


def people(serving):
    return {p.pseudonym: p for p in kept_of(serving).people()}


@pytest.fixture
def visitor(serving):
    v = Visitor(serving.url)
    assert v.start() == (200, "/item/1/reply")
    return v


def who(serving, v):
    return kept_of(serving).find(next(iter(v.jar)).value)


# ---- nothing is lost, nothing is doubled


def test_two_people_at_once_answer_their_own_items_and_a_table_holds_them(serving, tmp_path):
    visitors = [Visitor(serving.url), Visitor(serving.url)]
    before = {*people(serving)}
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda v: v.start(), visitors)] == [(200, "/item/1/reply")] * 2
        for n in (1, 2):
            assert [*pool.map(lambda v: v.item(n)[-1], visitors)] == [
                (200, "/item/2/reply" if n == 1 else "/mine")
            ] * 2
    own = [who(serving, v).pseudonym for v in visitors]
    assert main(["study", "export", str(serving.folder / "study"), str(tmp_path / "a.csv")]) == 0
    rows = [row for row in csv.DictReader(open(tmp_path / "a.csv")) if row["participant"] in own]
    assert (
        {*own} == {*people(serving)} - before
        and len(rows) == 2 * 2 * 3
        and {row["model"] for row in rows} == {*MODELS}
    )
    assert all(
        float(row["similarity"]) == 2 + int(row["letter"])
        and float(row["rank"]) == 4 - int(row["letter"])
        for row in rows
    )
    assert {row["judged"] for row in rows if row["model"] == "model-gamma"} == {"nan"} and rows[0][
        "stance"
    ] == "own stance"


def test_what_is_sent_twice_is_kept_once_and_may_be_changed_until_it_is_closed(serving, visitor):
    def kept():
        return kept_of(serving).answer(who(serving, visitor).id, 1, "reply")["reply"]

    twice = [visitor.reply(1)[:2], visitor.reply(1)[:2]]  # a double click, or a lost answer
    assert twice == [(200, "/item/1/states")] * 2 and kept() == "Because it is near."
    assert visitor.reply(1, "Another word than before.")[:2] == (200, "/item/1/states")
    assert kept() == "Another word than before."


def test_what_is_not_complete_comes_back_and_does_not_count(serving, visitor):
    visitor.reply(1), visitor.states(1)
    status, path, page = visitor.rate(
        1, rank_A=1, human_B="11", comparison="I see <b>no</b> difference"
    )
    assert (
        (status, path) == (422, "/item/1/ratings")
        and page.count("rank of its own") == 3
        and "number from 1 to 10" in page
        and "&lt;b&gt;no&lt;/b&gt;" in page
    )
    kept = kept_of(serving)
    assert kept.answer(who(serving, visitor).id, 1, "ratings") is None
    name = who(serving, visitor).pseudonym
    rows = [row for row in study_ratings(kept) if row["participant"] == name]
    scales = ("similarity", "human", "rank", "top")
    assert len(rows) == 6 and all(math.isnan(row[x]) for row in rows for x in scales)
    assert visitor.rate(1)[:2] == (200, "/item/2/reply")


def test_what_was_written_before_the_replies_were_seen_is_closed(serving, visitor):
    visitor.item(1)
    assert visitor.reply(1, "Now I know better.")[1] == "/item/2/reply"
    assert kept_of(serving).answer(who(serving, visitor).id, 1, "reply") == {
        "reply": "Because it is near."
    }
    assert (
        visitor.ask("/item/2/ratings")[1] == "/item/2/reply"
        and visitor.rate(2)[1] == "/item/2/reply"
    )  # no step is skipped, by no flag
    assert visitor.ask("/item/2/ratings?cheat=1&debug=1")[1] == "/item/2/reply"


def test_a_killed_server_loses_nothing_that_it_acknowledged(home, tmp_path):
    with Serving(tmp_path, "--study.items", home / "items.jsonl", "--study.words", 0) as first:
        v = Visitor(first.url)
        v.start(), v.reply(1), v.states(1)
        first.kill()
        with pytest.raises(urllib.error.URLError):
            v.rate(1)
        with Serving(tmp_path, port=first.port) as again:
            assert v.ask("/")[1] == "/item/1/ratings" and v.rate(1)[1] == "/item/2/reply"
            assert kept_of(again).answer(who(again, v).id, 1, "states")["goal"] == "own goal"


# ---- blind, safe, and one's own


def test_no_page_says_which_model_wrote_what_and_orders_differ(serving):
    orders = set()
    for _ in range(8):
        v = Visitor(serving.url)
        v.start()
        pages = [
            v.ask("/")[2],
            *(page for _, _, page in (v.reply(1), v.states(1), v.rate(1))),
            v.ask("/mine")[2],
            v.ask("/item/1/ratings")[2],
        ]
        assert not any(name in page for page in pages for name in (*MODELS, "judged"))
        orders.add(tuple(re.findall(r"Reply (\d) to", pages[2])))
    assert len(orders) > 1 and {frozenset(order) for order in orders} == {frozenset("012")}


def test_deleting_leaves_nothing(serving, visitor):
    secret = "the cellar of the blue house"
    visitor.reply(1, secret)
    code, path = next(iter(visitor.jar)).value, kept_of(serving).path
    assert secret in visitor.ask("/mine")[2]
    assert (
        code.encode() not in path.read_bytes() and secret.encode() in path.read_bytes()
    )  # only a hash of the code is kept
    assert visitor.ask("/delete", {})[1] == "/mine" and who(serving, visitor)  # not by accident
    assert visitor.ask("/delete", {"sure": "yes"})[:2] == (200, "/deleted")
    assert secret.encode() not in path.read_bytes()
    assert visitor.reply(1)[0] == 401 and visitor.ask("/")[1] == "/"


def test_a_key_is_asked_for_where_there_is_one(home, tmp_path):
    with Serving(tmp_path, "--study.items", home / "items.jsonl", "--study.key", "swan") as keyed:
        v = Visitor(keyed.url)
        assert [v.start(), v.start(key="swän"), v.start(key="swan")] == [
            (403, "/start"),
            (403, "/start"),
            (200, "/item/1/reply"),
        ]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_anybody_stay_text(tmp_path, text):
    kept = StudyAnswers(tmp_path)
    kept.settle(
        {"consent": text, "words": 0, "per_person": 1},
        [StudyItem("1", "1", ((text, text),), {"a": text + "!", "b": "No."})],
    )
    person = kept.begin(code := _new_code())
    for step, values in (
        ("reply", {"reply": text}),
        ("states", dict.fromkeys(STATES, text)),
    ):
        kept.save(person.id, 1, step, values)
    pages, sent = _Survey(kept), {"comparison": text, "rank_A": text}
    for answer in (
        pages.consent(text, text),
        *(pages.step(person, 1, step) for step in ("reply", "states", "ratings")),
        pages.step(person, 1, "ratings", sent, {"comparison": text}),
        pages.mine(SimpleNamespace(cookies={pages.cookie: code})),
    ):
        reader = Reader()
        reader.feed(answer.body.decode())
        reader.close()
        assert reader.stack == [] and reader.tags <= TAGS | {
            "form",
            "button",
            "textarea",
            "fieldset",
            "legend",
            "footer",
        }
        assert not any(name.startswith("on") or name == "src" for name in reader.attributes)


# ---- what is wrong is said


def test_a_study_takes_no_other_items_or_questions_under_those_who_have_begun(
    home, serving, tmp_path, capsys
):
    StudyAnswers(tmp_path).settle(
        {"consent": "", "words": 1, "per_person": 1},
        study_items(StudyConfig(items=str(home / "items.jsonl")))[0],
    )
    assert (
        main(
            [
                "study",
                "serve",
                "--study.out",
                str(tmp_path),
                "--study.items",
                str(home / "items.jsonl"),
                "--study.per_person",
                "3",
            ]
        )
        == 2
    )
    assert "other" in capsys.readouterr().err
    assert (
        main(["study", "serve", "--study.out", str(serving.folder / "study")]) == 2
    )  # another process serves it
    assert "--study.out" in capsys.readouterr().err
