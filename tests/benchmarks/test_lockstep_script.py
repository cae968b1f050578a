"""The script that compares both engines: it counts, it finds what differs, it says so by its exit.

The native engine stands in for the original, with or without an alteration.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.original.textworld_engine import Reply
from agent_envs.errors import MissingExtra, UnsupportedGame
from tests.agent_envs.alfworld.original.test_lockstep import StandIn
from tests.support import ROOT

SCRIPT = ROOT / "benchmarks" / "lockstep.py"
WORDS = ("--games", "generated:small?seed=1", "--n", "3", "--steps", "20", "--json")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lockstep_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_equal_engines(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "TextWorldGame", lambda payload: StandIn(compile_game(payload)))
    assert script.main(WORDS) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert (figures["games"], figures["steps"], figures["games_that_differ"]) == (3, 60, 0)
    assert figures["differences"] == []
    assert figures["met"]["refused"] > 0
    assert figures["met"]["go"] > 0
    assert sum(line.startswith("equal ") for line in lines) == 3
    assert script.main(WORDS) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures
    script.main((*WORDS, "--seed", "1"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["met"] != figures["met"]


def test_an_altered_engine_is_found_and_shown(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def less(number: int, reply: Reply) -> Reply:
        return reply._replace(admissible=reply.admissible[1:]) if number == 7 else reply

    monkeypatch.setattr(
        script, "TextWorldGame", lambda payload: StandIn(compile_game(payload), less)
    )
    assert script.main(WORDS) == 1
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])
    assert (figures["games"], figures["steps"], figures["games_that_differ"]) == (3, 21, 3)
    first = figures["differences"][0]
    assert (first["step"], first["what"], first["original"]) == (7, "admissible", [])
    assert len(first["ours"]) == 1  # the command that the altered engine does not list
    assert f"step 7: {first['action']!r}" in out


def test_a_game_that_the_original_refuses_is_a_difference(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(payload: Mapping[str, Any]) -> StandIn:
        raise UnsupportedGame("no such action")

    monkeypatch.setattr(script, "TextWorldGame", refuse)
    assert script.main(WORDS) == 1
    out = capsys.readouterr().out
    assert "no such action" in out
    assert json.loads(out.splitlines()[-1])["games"] == 0


def test_nothing_compared_is_no_success(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(payload: Mapping[str, Any]) -> StandIn:
        raise MissingExtra("pip install '.[reference]'")

    monkeypatch.setattr(script, "TextWorldGame", missing)
    assert script.main(WORDS) == 2
    assert "reference" in capsys.readouterr().err
    assert script.main(("--games", "/no/such/folder")) == 2
    assert "/no/such/folder" in capsys.readouterr().err


@pytest.mark.reference
def test_run_as_a_script_with_the_original(reference: None) -> None:
    """Started as users do: none of its neighbours may hide a package, say `alfworld`."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *WORDS[:2], "--n", "1", "--steps", "6", "--json"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["games"], figures["steps"]) == (1, 6)
