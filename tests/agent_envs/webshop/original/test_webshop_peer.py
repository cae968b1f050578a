"""Driving a checkout of the original: the stand-ins, what it is told, and how it fails.

The checkout is a tiny one of our own (`fake_checkout`), but for the last test, which takes the
real one where ``SERO_WEBSHOP_ORIGINAL`` names a folder.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_envs.errors import DataError, MissingData, MissingExtra, WorkerError
from agent_envs.webshop.catalogue import RawFiles
from agent_envs.webshop.original import peer as peer_module
from agent_envs.webshop.original.peer import OriginalShop
from agent_envs.webshop.original.stand_in import StandInIndex
from tests.agent_envs.webshop.original import fake_checkout
from tests.support import unavailable
from trainer.bench.webshop_walks import Shopper

NOUNS = {"Red Shoe": ("Shoe",), "Any": ("Thing", "Part")}


@pytest.fixture(autouse=True)
def _only_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "PACKAGES", ("numpy",))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return fake_checkout.write(tmp_path / "checkout")


@pytest.fixture
def files(tmp_path: Path) -> RawFiles:
    return fake_checkout.write_data(tmp_path / "data")


@pytest.fixture
def peer(checkout: Path, files: RawFiles) -> Iterator[OriginalShop]:
    with OriginalShop(checkout, files, seed=5, nouns=NOUNS, human_goals=True) as running:
        yield running


def test_it_runs_in_a_process_of_its_own(
    peer: OriginalShop, checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No stand-in here, nothing printed, and nothing written into the checkout."""
    modules, state = set(sys.modules), random.getstate()
    before = sorted(checkout.rglob("*"))
    peer.reset(0)
    peer.step("search[shoe]")
    assert sorted(checkout.rglob("*")) == before
    assert set(sys.modules) == modules
    assert random.getstate() == state
    assert not {"web_agent_site", "gym", "pyserini"} & {name.split(".")[0] for name in modules}
    assert capfd.readouterr() == ("", "")


def test_goals_and_options_reach_the_original(peer: OriginalShop) -> None:
    first = peer.reset(1)
    assert first.observation == "text Blue Shoe {'human_goals': True}"
    assert first[1:6] == (0.0, False, True, ("start",), None)
    assert peer.goals()[3] == {"name": "Hat"}
    assert peer.reset({"name": "Any"}).observation.startswith("text Any ")
    assert peer.step("click[sessions]").observation == "0"
    peer.reset(2, "mine")
    assert peer.step("click[sessions]").observation == "mine"


def test_prices_follow_the_seed_until_they_are_set(peer: OriginalShop) -> None:
    drawn = random.Random(5)
    by_asin = {p["asin"]: drawn.random() for p in fake_checkout.PRODUCTS}
    assert peer.prices() == by_asin
    peer.set_prices({"B01": 7.5})
    assert peer.prices() == {**by_asin, "B01": 7.5}
    peer.reset({"name": "Any"})
    bought = peer.step("click[buy now]")
    assert (bought.reward, bought.done) == (7.5, True)
    assert bought.reward_info == {"nouns": ["Thing", "Part"]}


def test_searches_are_answered_by_the_stand_in_or_as_taught(peer: OriginalShop) -> None:
    peer.reset(0)
    assert peer.step("search[red hat]").clickables == ("B03", "B01")
    assert not peer.step("search[red hat]").has_search_bar
    peer.teach({"red hat": ["B02", "B01", "B03"], "nothing": []})
    assert peer.step("search[red hat]").clickables == ("B02", "B01")  # it asks for two
    assert peer.step("search[nothing]").clickables == ()
    assert peer.searches()[0] == 4


def test_an_error_of_the_original_is_told_and_survived(peer: OriginalShop) -> None:
    peer.reset(0)
    with pytest.raises(DataError, match=r"raised KeyError: 'what'.*step"):
        peer.step("click[what]")
    assert peer.step("search[hat]").clickables


def test_a_process_that_dies_is_told(peer: OriginalShop) -> None:
    peer.reset(0)
    with pytest.raises(WorkerError, match="exit code 3"):
        peer.step("click[leave]")
    with pytest.raises(WorkerError):
        peer.step("search[hat]")


def test_a_folder_that_is_no_checkout(tmp_path: Path, checkout: Path, files: RawFiles) -> None:
    with pytest.raises(MissingData, match=r"there is no such folder.*Clone"):
        OriginalShop(tmp_path / "nowhere", files)
    (checkout / "web_agent_site/engine/goal.py").unlink()
    with pytest.raises(MissingData, match=r"it has no web_agent_site/engine/goal\.py"):
        OriginalShop(checkout, files)


def test_files_that_are_missing_or_broken(checkout: Path, files: RawFiles) -> None:
    with pytest.raises(MissingData, match=r"no file .*human"):
        OriginalShop(checkout, replace(files, humans=Path("human.json")), nouns=NOUNS)
    files.attributes.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"raised JSONDecodeError.*loading"):
        OriginalShop(checkout, files, nouns=NOUNS)


def test_missing_packages_name_the_extra(
    checkout: Path, files: RawFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(peer_module, "PACKAGES", ("numpy", "no_such_package"))
        with pytest.raises(MissingExtra, match=r"no_such_package.*\[webshop-reference\]"):
            OriginalShop(checkout, files)
    path = checkout / "web_agent_site/engine/goal.py"
    path.write_text("import no_such_package", encoding="utf-8")
    with pytest.raises(MissingExtra, match=r"no_such_package.*\[webshop-reference\]"):
        OriginalShop(checkout, files, nouns=NOUNS)


def test_the_stand_in_index_by_hand() -> None:
    index = StandInIndex(
        [
            {"asin": "C", "name": "red hat", "full_description": "", "small_description": []},
            {"asin": "A", "name": "red hat", "full_description": "", "small_description": None},
            {"asin": "B", "name": "hat", "full_description": "hat", "small_description": "hat on"},
        ]
    )
    # Lengths 2, 2, 4; "hat" is in all three: 1 / (1 + k(0.6 + 0.4 n/avg)) against 3 / (3 + ...).
    idf = math.log(1 + 0.5 / 3.5)
    short = idf / (1 + 0.9 * (0.6 + 0.4 * 2 / (8 / 3)))
    long = 3 * idf / (3 + 0.9 * (0.6 + 0.4 * 4 / (8 / 3)))
    assert long > short
    assert index.search("HAT!", 9) == ["B", "A", "C"]
    assert index.search("red", 9) == ["A", "C"]
    assert index.search("red", 1) == ["A"]
    assert index.search("blue", 9) == []


def test_the_real_original_on_the_walk_that_its_speed_was_recorded_with(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """612 steps, 40 purchases, mean reward 0.183, mean observation 896 characters."""
    monkeypatch.undo()
    folder = os.environ.get("SERO_WEBSHOP_ORIGINAL")
    if folder is None:
        unavailable("webshop", "SERO_WEBSHOP_ORIGINAL names no checkout of the original")
    data = real_data / "webshop_1k"
    files = RawFiles(
        data / "items_shuffle_1000.json",
        data / "items_ins_v2_1000.json",
        data / "items_human_ins_1k.json",
    )
    nouns = json.loads((data / "title_nouns_sm380.json").read_text(encoding="utf-8"))
    with OriginalShop(folder, files, seed=0, nouns=nouns) as real:
        goals = real.goals()
        rng = random.Random(7)
        rewards, lengths = [], []
        for number in rng.sample(range(len(goals)), 60):
            page = real.reset(number)
            shopper = Shopper(goals[number]["instruction_text"], rng)
            for _ in range(15):
                page = real.step(shopper.choose(page.has_search_bar, page.clickables))
                lengths.append(len(page.observation))
                if page.done:
                    rewards.append(page.reward)
                    break
        searches, _ = real.searches()
    assert (len(goals), len(lengths), len(rewards), searches) == (6910, 612, 40, 156)
    assert statistics.fmean(rewards) == pytest.approx(0.183, abs=5e-4)
    assert statistics.fmean(lengths) == pytest.approx(896, abs=0.5)
