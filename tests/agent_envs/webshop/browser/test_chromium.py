"""Browsers start, fail and end; none is ever left."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import MissingExtra
from agent_envs.webshop.browser import chromium
from agent_envs.webshop.browser.chromium import Chromium, find_program
from agent_envs.webshop.browser.errors import BrowserError
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.browser.conftest import make, processes_of, wait_for_end
from tests.support import ROOT, full_count, run_python

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary files of this test alone: browsers of others come and go. The name is short, for
    those of sockets in it."""
    folder = tempfile.mkdtemp(prefix="b")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)


def profiles() -> set[str]:
    return {str(path) for path in Path(tempfile.gettempdir()).glob("sero-browser-*")}


@pytest.mark.parametrize("variable", [chromium.CHROMIUM, chromium.CHROMEDRIVER])
def test_a_missing_program_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingExtra, match="apt-get install chromium chromium-driver"):
        find_program(variable)
    monkeypatch.setenv(variable, "/nowhere/chrome")
    with pytest.raises(MissingExtra, match="/nowhere/chrome"):
        find_program(variable)
    monkeypatch.setenv(variable, sys.executable)
    assert find_program(variable) == sys.executable


@pytest.mark.parametrize("hidden", ["selenium", "flask", "werkzeug"])
def test_a_missing_package_names_its_extra(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == hidden]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    if hidden == "werkzeug":
        for name in [n for n in sys.modules if n.partition(".")[0] == "flask"]:
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=f"'{hidden}'.*pip install"):
        make()


def test_a_missing_program_leaves_the_env_usable(
    browser: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make()
    before = profiles()
    with monkeypatch.context() as patch:
        patch.setenv(chromium.CHROMEDRIVER, "/nowhere")
        with pytest.raises(MissingExtra, match="ChromeDriver"):
            env.reset(seed=0)
    try:
        assert "Instruction" in env.reset(seed=0)[0]
    finally:
        env.close()
    assert profiles() <= before


def test_a_program_that_is_no_browser_is_a_typed_error(
    browser: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = profiles()
    monkeypatch.setenv(chromium.CHROMEDRIVER, "/bin/false")
    with pytest.raises(BrowserError, match="ChromeDriver does not start"):
        Chromium(20)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)
    monkeypatch.setenv(chromium.CHROMEDRIVER, str(silent))
    with pytest.raises(BrowserError, match="did not start within"):
        Chromium(1)
    monkeypatch.delenv(chromium.CHROMEDRIVER)
    monkeypatch.setenv(chromium.CHROMIUM, "/bin/false")
    with pytest.raises(BrowserError, match=r"Chromium .* does not start"):
        Chromium(30)
    assert profiles() <= before


def started() -> tuple[Any, list[int]]:
    """An env with a running browser, and the processes of it."""
    env = make()
    env.reset(seed=0)
    (guard,) = env.unwrapped.front.pids
    pids = processes_of(guard)
    assert len(pids) > 4  # guard, driver, browser, helpers
    return env, pids


def test_close_ends_everything(browser: None) -> None:
    before = profiles()
    env, pids = started()
    port = env.unwrapped.front._server.port
    env.close()
    assert wait_for_end(pids, 0) == []
    assert profiles() <= before
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    env.close()  # again
    env.reset(seed=0)  # and on
    env.close()


def test_a_forgotten_env_ends_its_browser(browser: None) -> None:
    env, pids = started()
    del env
    gc.collect()
    assert wait_for_end(pids) == []


@pytest.mark.parametrize("victim", ["chromium", "chromedriver"])
def test_a_killed_browser_is_a_typed_error_and_the_episode_goes_on(
    browser: None, victim: str
) -> None:
    env, pids = started()
    reference = shops.make(goal_source="human")
    reference.reset(seed=0)
    try:
        for said in ("search[desk]", f"click[{shops.DESKS[0].lower()}]", "click[red]"):
            env.step(said)
            reference.step(said)
        for pid in pids:
            words = cmdline(pid)
            if Path(words[0]).name == victim and not any("--type=" in word for word in words):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(BrowserError, match="next step, restore or reset"):
            env.step("click[m]")
        assert wait_for_end(pids) == []
        # Nothing of the step was taken; another browser goes on at the same place.
        for said in ("click[m]", "click[buy now]"):
            one, other = env.step(said), reference.step(said)
            assert one[:4] == other[:4]
        assert one[-1]["steps_left"] == other[-1]["steps_left"]
    finally:
        env.close()


def cmdline(pid: int) -> list[str]:
    """Words of a process's command; that of a process that has ended is empty."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


PLAY = """
import os, signal, sys, time
from tests.agent_envs.webshop.browser.conftest import make, processes_of
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
env = make()
env.reset(seed=0)
print(*processes_of(env.unwrapped.front.pids[0]), flush=True)
how = sys.argv[1]
if how == "exception":
    raise RuntimeError("an error of the program")
if how == "exit":
    sys.exit(3)
if how == "thread":
    import threading
    threading.Thread(target=time.sleep, args=(600,)).start()
if how == "fork" and os.fork() == 0:
    os.close(1)
    os.close(2)
    time.sleep(600)
if how in ("9", "fork", "thread"):
    os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), int(how))
time.sleep(600)
"""


ENDS = ("exit", "15", "9", "fork", "exception", "2", "thread")


@pytest.mark.parametrize("how", ENDS[: full_count(4, len(ENDS))])
def test_no_process_outlives_the_program(browser: None, how: str) -> None:
    """However it ends: by itself, by an error, by a signal, killed, killed while a child lives."""
    before = profiles()
    program = subprocess.Popen(
        [sys.executable, "-c", PLAY, how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) > 4
        assert program.wait(60) != 0
        assert wait_for_end(pids) == []
        assert profiles() <= before
    finally:
        program.stdout.close()  # type: ignore[union-attr]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # the child that the program forked


FORKED = """
import os, sys
from tests.agent_envs.webshop.browser.conftest import make, processes_of
env = make()
env.reset(seed=0)
env.step("search[desk]")
pids = processes_of(env.unwrapped.front.pids[0])
for does in ("steps", "closes", "leaves"):
    child = os.fork()
    if child == 0:
        if does == "steps":  # with a browser of its own, at the same page
            expected = "Page 2" in env.step("click[next >]")[0]
            own = env.unwrapped.front.pids[0] not in pids
            env.close()
            os._exit(0 if expected and own else 1)
        if does == "closes":
            env.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, does
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids[:3]), does
assert "Page 2" in env.step("click[next >]")[0]
env.close()
print("good")
"""


def test_a_forked_process_leaves_the_browser_to_its_parent(browser: None) -> None:
    assert run_python(FORKED).splitlines()[-1] == "good"


def test_nothing_outside_is_asked_for(browser: None) -> None:
    """Names are not even looked up, and no proxy of the environment is used."""
    with_browser = Chromium()
    try:
        driver = with_browser.driver
        from selenium.common.exceptions import WebDriverException

        for url in ("http://example.org/", "http://localhost.example/"):
            with pytest.raises(WebDriverException, match="ERR_NAME_NOT_RESOLVED"):
                driver.get(url)
    finally:
        with_browser.close()
