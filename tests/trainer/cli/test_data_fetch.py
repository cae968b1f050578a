"""`sero data fetch`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_envs.alfworld.games import download
from agent_envs.alfworld.games.fetch import GAMES, TRAJECTORIES
from tests.agent_envs.alfworld.games.test_fetch import IDS, game_files, trajectory_files, zipped
from tests.agent_envs.alfworld.http_server import Site, serve
from tests.support import run_python
from tests.trainer.cli.conftest import Sero


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    monkeypatch.setattr(download, "UNREACHABLE_ATTEMPTS", 1)
    with serve() as site:
        site.files[f"/{GAMES.name}"] = zipped(game_files())
        site.files[f"/{TRAJECTORIES.name}"] = zipped(trajectory_files())
        yield site


def test_o34_from_nothing_to_games_that_status_finds(
    sero: Sero, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = sero("data", "fetch", "alfworld", "--out", tmp_path, "--url", site.url, "--json")
    assert outcome.code == 0
    assert outcome.figures["games"] == 3
    assert outcome.figures["splits"] == {"train": 1, "valid_seen": 1, "valid_unseen": 1}
    assert [one["trajectories"] for one in outcome.figures["archives"]] == [0, 4]
    (line,) = [line for line in outcome.lines if line.startswith("play them: ")]
    name, _, value = line.removeprefix("play them: export ").partition("=")
    assert name == "SERO_ALFWORLD_DATA"
    monkeypatch.setenv(name, value)
    found = sero("data", "status", "--json")
    assert found.code == 0
    assert found.figures["manifest_hash"] == outcome.figures["manifest_hash"]
    assert f"getting {GAMES.name}" in outcome.errors  # the bars
    again = sero("data", "fetch", "alfworld", "--out", tmp_path, "--url", site.url)
    assert again.code == 0
    assert sum("was there already" in line for line in again.lines) == 2


def test_games_only(sero: Sero, site: Site, tmp_path: Path) -> None:
    words = ("--out", tmp_path, "--url", site.url, "--games-only", "--keep-archives")
    outcome = sero("data", "fetch", "alfworld", *words)
    assert outcome.code == 0
    assert [path for path, _ in site.asked] == [f"/{GAMES.name}"]
    assert (tmp_path / GAMES.name).is_file()


def test_o34_what_stops_it_is_said_without_a_traceback(
    sero: Sero, site: Site, tmp_path: Path
) -> None:
    half = len(site.files[f"/{GAMES.name}"]) // 2
    words = ("data", "fetch", "alfworld", "--out", tmp_path, "--url", site.url)
    site.faults += [{"cut": half}]
    outcome = sero(*words, "--timeout", "3")
    assert outcome.code == 2
    assert "Traceback" not in outcome.errors
    for part in ("the same command goes on from them", f"{half:,}", f"{tmp_path / GAMES.name}"):
        assert part in outcome.errors
    assert sero(*words).code == 0
    assert site.asked[1] == (f"/{GAMES.name}", f"bytes={half}-")


def test_o34_an_unreachable_server(sero: Sero, site: Site, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    outcome = sero("data", "fetch", "alfworld", "--out", tmp_path, "--url", url, "--timeout", "3")
    assert outcome.code == 2
    for part in ("no connection", "no internet", "SERO_ALFWORLD_DATA"):
        assert part in outcome.errors
    assert sero("data", "fetch", "alfworld", "--url", "file:///etc").code == 2


def test_it_needs_no_torch() -> None:
    code = "import sys, trainer.cli.data_fetch; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"


def test_the_games_are_those_of_the_archives() -> None:
    assert {name.split("/", 1)[1].rpartition("/")[0] for name in game_files()} == set(IDS)
