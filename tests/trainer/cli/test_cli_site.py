"""`sero site`: what it says, what it serves, and that it stops when it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.trainer.cli.conftest import Sero

pytest.importorskip("flask")

from agent_envs.webshop.site.server import THREADS

SHOP = "generated:small?seed=1"


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    """A running `sero site`: the process, the lines before it serves, and its address."""
    command = [sys.executable, "-m", "trainer.cli.main", "site", "--port", "0", "--data", SHOP]
    process = subprocess.Popen(
        [*command, *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("serving "):
                break
        assert lines, "it said nothing"
        assert lines[-1].startswith("serving "), lines
        yield process, lines, lines[-1].split()[1]
    finally:
        process.kill()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop(number: signal.Signals, tmp_path: Path) -> None:
    with serving("--log", tmp_path / "logs") as (process, lines, url):
        assert url.startswith("http://127.0.0.1:")
        assert "WARNING" not in "\n".join(lines)
        status, text = fetch(url)
        assert status == 200
        assert "Instruction" in text
        assert fetch(f"{url}fixed_0")[0] == 200
        assert fetch(f"{url}nobody")[0] == 404
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"
    with pytest.raises(urllib.error.URLError):
        fetch(url)
    (named,) = (tmp_path / "logs").glob("fixed_0.jsonl")
    assert json.loads(named.read_text().splitlines()[0])["page"] == "index"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_slow_clients_cannot_keep_it_from_stopping(number: signal.Signals) -> None:
    """More than it has threads, all in the middle of a request."""
    with serving() as (process, _, url), ExitStack() as stack:
        port = int(url.rstrip("/").rpartition(":")[2])
        for _ in range(THREADS + 8):
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            stack.enter_context(connection).sendall(b"GET / HTTP/1.1\r\nX: ")
        time.sleep(1)  # all threads are taken, the next client waits for one
        process.send_signal(number)
        assert process.wait(60) == 0


STOPPING = """
from time import sleep
from trainer.cli.site import _told_to_stop
with _told_to_stop() as stop:
    print("serving", flush=True)
    while not stop:
        sleep(0.1)
    while True:
        print("stopping", flush=True)
        sleep(600)
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_second_time_it_is_told_it_ends_at_once(first: signal.Signals) -> None:
    """Even in the middle of stopping."""
    command = [sys.executable, "-c", STOPPING]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serving\n"
            process.send_signal(first)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


def test_it_warns_where_others_can_reach_it() -> None:
    with serving("--host", "0.0.0.0", "--goal-source", "synthetic") as (_, lines, _url):
        told = "\n".join(lines)
        assert "WARNING: 0.0.0.0 is not this machine alone" in told
        assert "synthetic goals" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--port", "70000"), "from 0 to 65535"),
        (("--port", "-1"), "from 0 to 65535"),
        (("--data", "/nowhere"), "/nowhere"),
        (("--host", "192.0.2.1", "--port", "0", "--data", SHOP), "Cannot listen on 192.0.2.1"),
        (("--log", "/proc/no/logs", "--data", SHOP), "cannot be written to"),
    ],
)
def test_what_cannot_work_is_said(sero: Sero, words: tuple[str, ...], told: str) -> None:
    outcome = sero("site", *words)
    assert outcome.code == 2
    assert told in outcome.errors


def test_a_taken_port_is_said(sero: Sero) -> None:
    with serving() as (_, _lines, url):
        port = url.rstrip("/").rpartition(":")[2]
        outcome = sero("site", "--data", SHOP, "--port", port)
        assert outcome.code == 2
        assert f"port {port}" in outcome.errors
        assert "0 takes any free one" in outcome.errors
