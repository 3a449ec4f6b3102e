"""What is served is held to this machine, to a size and to safe headers; a server ends when it is
told to, with all it started."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from humanlm.core.web import (
    LOCAL,
    WebError,
    answer,
    answer_json,
    read_json,
    serving_app,
    web_app,
)
from humanlm.serving.service import _unless_gone

ROOT = Path(__file__).resolve().parents[2]


def get(url, data=None, kind="application/json", **headers):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, {"Content-Type": kind} | headers)
        ) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as e:
        return e.code, e.read(), e.headers


@pytest.fixture(scope="module")
def url():
    async def size(request):
        return answer_json(len(await read_json(request, 100)))

    def broken(request):
        return 1 // 0

    def refused(request):
        raise WebError("no tea", 418, "teapot")

    routes = {
        "GET /": lambda request: answer("<p>\udc80"),
        "GET /broken": broken,
        "GET /refused": refused,
        "POST /size": size,
    }
    with serving_app(web_app(routes, hosts=LOCAL)) as url:
        yield url


@pytest.mark.parametrize(
    "path, status",
    [("/", 200), ("/broken", 500), ("/refused", 418), ("/%3Cscript%3E", 404), ("/size", 405)],
)
def test_every_answer_keeps_a_browser_from_running_anything(url, path, status):
    found, body, headers = get(url + path)
    assert (
        found == status
        and headers["X-Content-Type-Options"] == "nosniff"
        and "default-src 'none'" in headers["Content-Security-Policy"]
    )
    if status != 200:
        assert (
            json.loads(body)["error"]["message"] and headers["Content-Type"] == "application/json"
        )


@pytest.mark.parametrize(
    "data, status",
    [(b"[1]", 200), (b"[" * 101, 413), (b"[" * 100, 400), (b"\xff", 400), (b"", 400)],
)
def test_a_body_is_read_up_to_its_limit(url, data, status):
    assert get(url + "/size", data)[0] == status


@pytest.mark.parametrize(
    "host", ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", "evil.test:127.0.0.1"]
)
def test_another_site_that_points_its_name_here_gets_nothing(url, host):
    assert get(url, Host=host)[0] == 403 and get(url, Host="localhost:1")[0] == 200


@pytest.mark.parametrize(
    "origin, status",
    [
        ("http://evil.test", 403),
        ("null", 403),
        ("https://127.0.0.1.evil.test", 403),
        ("http://localhost:1", 200),
    ],
)
def test_no_other_site_makes_a_browser_ask_here(url, origin, status):
    assert get(url, Host="localhost:1", Origin=origin)[0] == status


def test_work_for_somebody_who_has_left_ends():
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def slow(request):
        return answer_json(await _unless_gone(request, work()))

    with serving_app(web_app({"GET /": slow})) as url:
        with socket.create_connection(url.removeprefix("http://").split(":"), 60) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ended.wait(60)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_viewer_ends_when_it_is_told_to_and_frees_its_port(tmp_path, sign):
    (tmp_path / "a.json").write_text("{")
    command = [
        sys.executable,
        "-m",
        "humanlm.view",
        str(tmp_path),
        "--view.port=0",
    ]

    def wake():
        return signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a background job ignores it

    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=wake,
    )
    try:
        base = child.stdout.readline().split(" at ")[1].split()[0]
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                assert get(base)[0] == 200
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        child.send_signal(sign)
        _, errors = child.communicate(timeout=60)
        assert "Traceback" not in errors and child.returncode in (0, 130)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(base.rstrip("/").rpartition(":")[2])), 1)
    finally:
        child.kill()
