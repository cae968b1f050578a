"""Fixtures of the command-line tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainer.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit code, its lines, its errors."""

    code: int
    lines: list[str]
    errors: str

    @property
    def figures(self) -> dict[str, Any]:
        """The JSON object on the last line."""
        value = json.loads(self.lines[-1])
        assert isinstance(value, dict)
        return value


Sero = Callable[..., Outcome]


@pytest.fixture
def sero(capsys: pytest.CaptureFixture[str]) -> Sero:
    """Run `sero WORDS` in this process."""

    def run(*words: object) -> Outcome:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out.splitlines(), captured.err)

    return run


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tree of generated game files: 6 train, 6 valid_seen, 6 valid_unseen."""
    from agent_envs.alfworld.households.generator import write_tree
    from agent_envs.alfworld.households.spec import SMALL

    out = tmp_path_factory.mktemp("houses")
    counts = {"train": 6, "valid_seen": 6, "valid_unseen": 6}
    write_tree(out, seed=5, counts=counts, spec=SMALL)
    return out
