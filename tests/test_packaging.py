"""The wheel: what it holds, and that it works on its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGES = {"agent_envs", "oracles", "trainer"}

# Runs the installed `sero` with everything of the extras hidden and every socket refused.
ALONE = """
import importlib.abc, socket, sys

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "textworld", "alfworld", "yaml"}:
            raise ModuleNotFoundError(name, name=name)

def refuse(*args, **kwargs):
    raise AssertionError("the network was used")

sys.meta_path.insert(0, Hide())
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse

import agent_envs, oracles, trainer
print(*(module.__file__ for module in (agent_envs, oracles, trainer)), sep="\\n")
from trainer.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a folder of its own."""
    out = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out)
    return out


def test_the_wheel_holds_exactly_the_three_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_the_wheel_holds_every_tracked_file_of_the_packages(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *sorted(PACKAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = [name for name in tracked if name not in names and (ROOT / name).exists()]
    assert missing == []


def test_licences_and_command_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.rpartition("/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    assert "sero = trainer.cli.main:main" in texts["entry_points.txt"]
    assert "Mohit Shridhar" in texts["THIRD_PARTY.md"]
    assert "MIT License" in texts["LICENSE"]


def test_o34_the_wheel_plays_alone_and_offline(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "commands.txt"
    script.write_text("look\n:undo\nlook\n", encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("ALFWORLD_DATA")}
    result = subprocess.run(
        [sys.executable, "-c", ALONE, "play", "--oracle", "--commands", str(script), "--json"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all(line.startswith(str(installed)) for line in lines[:3])
    assert json.loads(lines[-1])["steps"] == 1
    assert any(line.startswith("oracle: ") for line in lines)
