"""The script of `make test-full`: its parts, what it keeps, and that it goes on."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT


@pytest.fixture
def script() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("full_test")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def small(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of two parts, one of which fails."""
    for name, text in {
        "tests/test_top.py": "def test_it(): pass\n",
        "tests/a/test_good.py": "def test_it(): pass\n\ndef test_that(): pass\n",
        "tests/a/deep/test_bad.py": "def test_it(): assert 1 == 2\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RESULTS", tmp_path / "benchmarks/results/full_test.json")
    monkeypatch.setattr(script.record, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(script.record, "commit", lambda: "c1")
    return tmp_path


def test_the_parts_hold_every_test_file_once(script: Any) -> None:
    files = [file for part in script.parts_of(ROOT).values() for file in part]
    every = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(files) == every


def test_a_name_stands_for_the_parts_below_it(script: Any) -> None:
    parts = ["tests/a", "tests/a/deep", "tests/ab", "tests"]
    assert script.chosen(parts, ["tests/a/"]) == ["tests/a", "tests/a/deep"]
    assert script.chosen(parts, []) == parts
    with pytest.raises(SystemExit, match=r"tests/c is none of the parts: tests/a, "):
        script.chosen(parts, ["tests/c"])


def test_a_failed_part_is_counted_and_run_again_and_a_passed_one_is_not(
    script: Any, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert script.main([]) == 1
    kept = json.loads((small / "benchmarks/results/full_test.json").read_text())
    assert (kept["tests"], kept["passed"], kept["failed"]) == (4, 3, 1)
    assert kept["exit_code"] == 1
    assert kept["checked_at"] == ["c1"]
    assert {n: p["failed"] for n, p in kept["parts"].items()} == {
        "tests/a": 0,
        "tests/a/deep": 1,
        "tests": 0,
    }
    (small / "tests/a/deep/test_bad.py").write_text("def test_it(): pass\n")
    capfd.readouterr()
    assert script.main([]) == 0
    out = capfd.readouterr().out
    assert "== tests/a/deep" in out
    assert "== tests/a\n" not in out
    kept = json.loads((small / "benchmarks/results/full_test.json").read_text())
    assert (kept["tests"], kept["passed"], kept["exit_code"]) == (4, 4, 0)


def test_parts_that_were_never_run_are_named_and_no_success(
    script: Any, small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["tests/a"]) == 1
    assert "not checked yet: tests\n" in capfd.readouterr().out
    kept = json.loads((small / "benchmarks/results/full_test.json").read_text())
    assert set(kept["parts"]) == {"tests/a", "tests/a/deep"}
    assert kept["not_checked"] == ["tests"]
