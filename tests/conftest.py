"""Fixtures for external data, the reference engine and a browser.

Tests that need them take the fixture `real_data`, `real_games`, `reference` or `browser` (those of
`oracles/pddl` also `fast_downward`); where the thing is absent they are skipped, and fail instead
if ``SERO_REQUIRE`` names it (``reference``, ``data``, ``browser``, ``pddl``).
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import unavailable

if TYPE_CHECKING:
    from agent_envs.alfworld.games import GameSet
    from agent_envs.webshop.catalogue import Shop

# Fixed examples, so that a red run can be repeated; no deadline: machines are shared.
settings.register_profile(
    "sero",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sero")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that ``SERO_TEST_DATA`` names."""
    value = os.environ.get("SERO_TEST_DATA")
    if not value:
        unavailable("data", "SERO_TEST_DATA is not set")
    path = Path(value)
    if not path.is_dir():
        unavailable("data", f"SERO_TEST_DATA names {path}, which is no folder")
    return path


@pytest.fixture(scope="session")
def real_games(real_data: Path) -> GameSet:
    """The published ALFWorld games of the test data."""
    from agent_envs.alfworld.games import GameSet

    archive = real_data / "alfworld_games.tar.xz"
    if not archive.is_file():
        unavailable("data", f"there is no {archive}")
    return GameSet.from_path(archive)


@pytest.fixture(scope="session")
def real_shop(real_data: Path) -> Shop:
    """The original's set of 1,000 products."""
    from agent_envs.webshop.catalogue import load_shop

    folder = real_data / "webshop_1k"
    if not folder.is_dir():
        unavailable("data", f"there is no {folder}")
    return load_shop(folder)


@pytest.fixture(scope="session")
def reference() -> None:
    """The original engine can be imported. Its import sets ALFWORLD_DATA, which is undone."""
    for name in ("textworld", "alfworld"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except ImportError as error:
            unavailable("reference", f"{name} cannot be imported ({error})")
    os.environ.pop("ALFWORLD_DATA", None)


@pytest.fixture(scope="session")
def browser() -> None:
    """Selenium, Flask, Chromium and ChromeDriver are there."""
    from agent_envs.errors import MissingExtra
    from agent_envs.webshop.browser import chromium
    from agent_envs.webshop.site.needs import needed

    try:
        needed("flask")
        chromium.selenium_modules()
        for variable in (chromium.CHROMIUM, chromium.CHROMEDRIVER):
            chromium.find_program(variable)
    except MissingExtra as error:
        unavailable("browser", str(error))


@pytest.fixture(autouse=True, scope="session")
def _no_games_of_the_user() -> None:
    """Tests play the games that they name, never those of the person who runs them."""
    for name in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA", "SERO_WEBSHOP_DATA"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes that they start, keep their caches in a folder of their own."""
    before = os.environ.get("SERO_CACHE")
    os.environ["SERO_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["SERO_CACHE"]
    else:
        os.environ["SERO_CACHE"] = before
