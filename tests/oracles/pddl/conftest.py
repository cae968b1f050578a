"""The fixture `fast_downward`, for tests that run it (``SERO_REQUIRE=pddl`` asks for it)."""

from __future__ import annotations

import pytest

from agent_envs.errors import MissingExtra
from oracles.pddl.fast_downward import find_programs
from tests.support import unavailable


@pytest.fixture(scope="session")
def fast_downward() -> None:
    """Fast Downward is installed."""
    try:
        find_programs()
    except MissingExtra as error:
        unavailable("pddl", str(error))
