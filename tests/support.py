"""Small helpers shared by tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]


def full_count(sample: int, full: int) -> int:
    """`full` under ``SERO_TEST_FULL=1`` (``make test-full``), else `sample`."""
    return full if os.environ.get("SERO_TEST_FULL") == "1" else sample


def unavailable(what: str, reason: str) -> NoReturn:
    """Skip, or fail where ``SERO_REQUIRE`` (a comma-separated list) names `what`."""
    required = os.environ.get("SERO_REQUIRE", "").split(",")
    if what in (name.strip() for name in required):
        pytest.fail(f"SERO_REQUIRE asks for {what!r}, but {reason}", pytrace=False)
    pytest.skip(f"{what}: {reason}")


def run_python(
    code: str, *args: str, env: dict[str, str] | None = None, timeout: float = 120
) -> str:
    """Standard output of `code` in a new interpreter that starts in the repository root."""
    result = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
