"""Starting and ending Chromium. Never leaves a process behind, see `guard`."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_envs.errors import MissingExtra
from agent_envs.webshop.browser.errors import BrowserError

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

CHROMIUM, CHROMEDRIVER = "SERO_CHROMIUM", "SERO_CHROMEDRIVER"
"""Environment variables that name the programs, where they are in no usual place."""
_PROGRAMS = {
    CHROMIUM: ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"),
    CHROMEDRIVER: ("chromedriver", "chromium.chromedriver"),
}
_GUARD = Path(__file__).with_name("guard.py")

_SWITCHES = (
    "--headless=new",
    "--window-size=1280,900",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-sync",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have 64 MB there, and Chromium crashes on it
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--password-store=basic",
    "--no-proxy-server",
    # The shop is on this machine, and nothing else is to be asked for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_program(variable: str) -> str:
    """The path of Chromium or ChromeDriver.

    Raises:
        MissingExtra: it is not installed, or the environment variable names none.
    """
    named = os.environ.get(variable)
    found = [shutil.which(name) for name in ((named,) if named else _PROGRAMS[variable])]
    path = next((path for path in found if path), None)
    if path is None:
        what = "Chromium" if variable == CHROMIUM else "ChromeDriver"
        where = f"${variable} is {named!r}, which is none" if named else "none is in PATH"
        raise MissingExtra(
            f"The browser env needs {what}, and {where}. On Debian: apt-get install chromium "
            f"chromium-driver. Elsewhere: install both in the same version, and set ${CHROMIUM} "
            f"and ${CHROMEDRIVER} to them."
        )
    return path


def selenium_modules() -> Any:
    """Selenium's package `webdriver`, with what is used of it imported.

    Raises:
        MissingExtra: Selenium is not installed.
    """
    try:
        from selenium import webdriver
        from selenium.webdriver.remote.client_config import ClientConfig  # noqa: F401
    except ImportError as error:
        package = (error.name or "selenium").partition(".")[0]
        raise MissingExtra(
            f"The browser env needs the package {package!r}, which is not installed, or too old. "
            "It comes with the extra 'browser': pip install '.[browser]' in a checkout of sero."
        ) from error
    return webdriver


class Chromium:
    """A headless Chromium, running from the start of its life to `close`.

    Also closed when it is garbage, when the interpreter exits, and when the process is killed.

    Args:
        timeout: seconds for the start, for loading a page and for every single command.
        switches: further ones for Chromium; the last of a kind counts.

    Raises:
        MissingExtra: Selenium, Chromium or ChromeDriver is not installed.
        BrowserError: Chromium does not start.
    """

    def __init__(self, timeout: float = 60.0, switches: Sequence[str] = ()) -> None:
        selenium_modules()
        chromium, driver = find_program(CHROMIUM), find_program(CHROMEDRIVER)
        self.timeout = timeout
        profile = tempfile.mkdtemp(prefix="sero-browser-")
        guard = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), profile),
                *(driver, "--port=0", "--log-level=SEVERE"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal is for the program, which then closes the browser.
            start_new_session=True,
        )
        drivers: list[WebDriver] = []
        self._end = weakref.finalize(self, _end, os.getpid(), guard, drivers, profile)
        try:
            port = _port_of(guard, timeout)
            drivers.append(_session(port, chromium, profile, timeout, switches))
        except BaseException:
            self.close()
            raise
        self.driver: WebDriver = drivers[0]
        self.guard_pid = guard.pid

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called yet. The browser may have died all the same."""
        return self._end.alive

    def close(self) -> None:
        """End the browser and all that belongs to it. Returns when it is gone."""
        self._end()

    @contextlib.contextmanager
    def talking(self, about: str) -> Iterator[WebDriver]:
        """The driver; whatever goes wrong with it is a `BrowserError`, and ends the browser.

        Args:
            about: what is being done, for the message.
        """
        from selenium.common.exceptions import WebDriverException
        from urllib3.exceptions import HTTPError

        try:
            yield self.driver
        except (WebDriverException, HTTPError, OSError) as error:
            self.close()
            reason = str(getattr(error, "msg", None) or error).strip().partition("\n")[0]
            raise BrowserError(
                f"The browser failed to {about}: {type(error).__name__}: {reason:.300} It was "
                "ended; the next step, restore or reset starts another."
            ) from error


def wait_until(holds: Callable[[], bool], timeout: float, about: str) -> None:
    """Ask the page again and again until `holds`.

    Raises:
        selenium.common.exceptions.TimeoutException: it does not, for `timeout` seconds.
    """
    from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
    from selenium.webdriver.support.wait import WebDriverWait

    leaving = (JavascriptException, StaleElementReferenceException)  # the page is just going
    waiting: WebDriverWait[None] = WebDriverWait(
        None, timeout, poll_frequency=0.01, ignored_exceptions=leaving
    )
    waiting.until(lambda _: holds(), f"{about} took more than {timeout:g} seconds")


def _session(
    port: int, chromium: str, profile: str, timeout: float, switches: Sequence[str]
) -> WebDriver:
    webdriver = selenium_modules()
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.proxy import Proxy
    from selenium.webdriver.remote.client_config import ClientConfig
    from urllib3.exceptions import HTTPError

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in (*_SWITCHES, f"--user-data-dir={profile}/profile", *switches):
        options.add_argument(switch)
    if os.geteuid() == 0:
        # Chromium refuses to run as root with its sandbox, as in most containers. What it is
        # shown comes from this machine alone.
        options.add_argument("--no-sandbox")
    url = f"http://127.0.0.1:{port}"
    # No proxy of the environment: it is this machine that is talked to.
    direct = Proxy({"proxyType": "direct"})
    config = ClientConfig(url, proxy=direct, timeout=int(timeout) + 5)
    try:
        driver: WebDriver = webdriver.Remote(url, options=options, client_config=config)
        driver.set_page_load_timeout(timeout)
        driver.set_script_timeout(timeout)
    except (WebDriverException, HTTPError, OSError) as error:
        reason = str(getattr(error, "msg", None) or error).strip().partition("\n")[0]
        raise BrowserError(
            f"Chromium ({chromium}) does not start: {reason:.500} Try it by hand: {chromium} "
            "--headless --dump-dom about:blank. Chromium and ChromeDriver must have the same "
            "version; without the right to use user namespaces its sandbox needs root."
        ) from error
    return driver


def _port_of(guard: subprocess.Popen[bytes], timeout: float) -> int:
    assert guard.stdout is not None
    said, deadline = b"", time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(guard.stdout, selectors.EVENT_READ)
        while b"\n" not in said:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise BrowserError(f"ChromeDriver did not start within {timeout:g} seconds.")
            piece = os.read(guard.stdout.fileno(), 4096)
            if not piece:
                break
            said += piece
    line = said.decode("utf-8", "replace").partition("\n")[0]
    kind, _, value = line.partition(" ")
    if kind != "port":
        raise BrowserError(f"ChromeDriver does not start: {value or 'it ended at once'}.")
    return int(value)


def _end(
    maker: int, guard: subprocess.Popen[bytes], drivers: list[WebDriver], profile: str
) -> None:
    if os.getpid() != maker:
        return  # a fork: the browser belongs to the process that started it
    assert guard.stdin is not None
    assert guard.stdout is not None
    if drivers:
        # Not `quit`: the guard ends everything at once, and a dead browser keeps us waiting.
        with contextlib.suppress(Exception):
            drivers[0].command_executor.close()
    with contextlib.suppress(OSError):
        guard.stdin.close()
    try:
        guard.wait(20)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
        shutil.rmtree(profile, ignore_errors=True)
    guard.stdout.close()
