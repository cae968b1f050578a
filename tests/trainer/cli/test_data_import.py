"""`sero data import webshop`, and what `sero data status` says of WebShop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_envs.webshop.catalogue import load_shop
from tests.agent_envs.webshop.catalogue.raws import (
    asin,
    options,
    raw_facts,
    raw_human,
    raw_product,
    small_raw,
    small_shop,
    write_raw,
)
from tests.support import ROOT
from tests.trainer.cli.conftest import Sero

VARIABLE = "SERO_WEBSHOP_DATA"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_raw(tmp_path / "raw", *small_raw()).products.parent


def test_import_writes_a_store(sero: Sero, raw: Path, tmp_path: Path) -> None:
    outcome = sero("data", "import", "webshop", raw, "--out", tmp_path / "store", "--json")
    assert outcome.code == 0
    figures = outcome.figures
    shop = load_shop(tmp_path / "store")
    assert figures["revision"] == shop.revision == small_shop().revision
    assert figures["products"] == 30
    assert figures["goals"] == {"synthetic": len(shop.goals("synthetic")), "human": 5}
    sizes = (file.stat().st_size for file in (tmp_path / "store").rglob("*") if file.is_file())
    assert figures["bytes"] == sum(sizes)
    assert f"--data {tmp_path / 'store'}" in "\n".join(outcome.lines)
    assert "reading items_shuffle.json" in outcome.errors


def test_the_public_set(sero: Sero, real_data: Path, tmp_path: Path) -> None:
    outcome = sero("data", "import", real_data / "webshop_1k", "--out", tmp_path / "s", "--json")
    assert outcome.figures["goals"] == {"synthetic": 6910, "human": 13}
    assert outcome.figures["skipped"] == {}
    status = sero("data", "status", "--data", tmp_path / "s", "--verify", "--json")
    assert status.code == 0
    goals = status.figures["webshop"]["goals"]["synthetic"]
    assert goals["by_goal"] == {"train": 5410, "val": 1000, "test": 500}
    assert sum(goals["by_product"].values()) == goals["all"] == 6910
    assert goals["products"] == 415
    assert "all check sums are right" in status.lines


def test_only_some_products(sero: Sero, raw: Path, tmp_path: Path) -> None:
    words = ("data", "import", "webshop", raw, "--out", tmp_path / "store", "--products")
    assert sero(*words, 7, "--json").figures["products"] == 7
    assert sero(*words, 0).code == 2


def test_a_store_is_replaced_on_request_only(sero: Sero, raw: Path, tmp_path: Path) -> None:
    words = ("data", "import", "webshop", raw, "--out", tmp_path / "store")
    assert sero(*words).code == 0
    refused = sero(*words)
    assert refused.code == 2
    assert "--force" in refused.errors
    assert sero(*words, "--force", "--products", 3, "--json").figures["products"] == 3


def test_files_that_cannot_be_imported(sero: Sero, raw: Path, tmp_path: Path) -> None:
    missing = sero("data", "import", "webshop", tmp_path / "nowhere", "--out", tmp_path / "s")
    assert missing.code == 2
    assert str(tmp_path / "nowhere") in missing.errors
    path = raw / "items_shuffle.json"
    path.write_bytes(path.read_bytes()[:-100])
    cut = sero("data", "import", "webshop", raw, "--out", tmp_path / "s")
    assert cut.code == 2
    assert "cut off" in cut.errors
    assert str(path) in cut.errors
    assert os.listdir(tmp_path) == ["raw"]


def test_a_store_is_no_raw_folder(sero: Sero, raw: Path, tmp_path: Path) -> None:
    assert sero("data", "import", "webshop", raw, "--out", tmp_path / "store").code == 0
    again = sero("data", "import", "webshop", tmp_path / "store", "--out", tmp_path / "other")
    assert again.code == 2
    assert "is a store already" in again.errors


def test_products_without_goals_are_no_success(sero: Sero, tmp_path: Path) -> None:
    folder = write_raw(tmp_path / "raw", [raw_product()], {}).products.parent
    assert sero("data", "import", "webshop", folder, "--out", tmp_path / "store").code == 1
    assert sero("data", "status", "--data", tmp_path / "store").code == 1


def test_status_names_what_was_left_out_and_why(sero: Sero, tmp_path: Path) -> None:
    products = [
        raw_product(asin(1)),
        raw_product(asin(1)),
        raw_product("12345678901"),
        raw_product(asin(2), pricing="free", customization_options=options(A=["x", "X"])),
        raw_product(...),  # type: ignore[arg-type]
    ]
    facts = {asin(1): raw_facts("light"), asin(2): raw_facts("light")}
    write_raw(tmp_path / "raw", products, facts, {asin(1): [raw_human("x", [])]})
    outcome = sero("data", "status", "--data", tmp_path / "raw", "--skipped", "--json")
    assert outcome.code == 0
    webshop = outcome.figures["webshop"]
    assert webshop["skipped"] == {
        "no_asin": 1,
        "long_asin": 1,
        "repeated_asin": 1,
        "no_goal_attributes": 1,
    }
    assert webshop["noted"] == {"value_collision": 1, "unreadable_price": 1}
    assert webshop["skip_examples"]["repeated_asin"] == [asin(1), "entry 1 repeats it"]
    assert [asin(1), "repeated_asin", "entry 1 repeats it"] in webshop["skipped_entries"]
    printed = "\n".join(outcome.lines[:-1])
    assert "left out: 1 products whose asin came before" in printed
    assert f"{asin(1)}: repeated_asin (entry 1 repeats it)" in printed
    assert "'x' and 'X' of group 'A'" in printed


def test_status_without_words_tells_of_both(
    sero: Sero, raw: Path, houses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(houses))
    monkeypatch.setenv(VARIABLE, str(raw))
    figures = sero("data", "status", "--json").figures
    assert figures["games"] == 18
    assert figures["webshop"]["products"] == 30
    assert figures["webshop"]["found_by"] == f"named by ${VARIABLE}"
    assert "webshop" not in sero("data", "status", "alfworld", "--json").figures
    assert sero("data", "status", "webshop", "--json").figures.keys() == {"webshop"}
    assert sero("data", "status", "--data", raw, "--json").figures.keys() == {"webshop"}
    assert sero("data", "status", "--data", houses, "--json").figures["games"] == 18
    generated = sero("data", "status", "webshop", "--data", "generated:small?n=12", "--json")
    assert generated.figures["webshop"]["products"] == 12


def test_o34_missing_shop_names_variable_path_and_command(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is still shown."""
    missing = tmp_path / "nowhere"
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(houses))
    monkeypatch.setenv(VARIABLE, str(missing))
    outcome = sero("data", "status")
    assert outcome.code == 2
    for part in (VARIABLE, str(missing), "sero data import webshop"):
        assert part in outcome.errors
    assert any(line.startswith("18 games") for line in outcome.lines)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(missing))
    assert sero("data", "status", "webshop").code == 0


def test_status_verifies_every_file(sero: Sero, raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert sero("data", "import", "webshop", raw, "--out", store).code == 0
    for name in ("synthetic.jsonl", "human_order.npy", "index/search.index"):
        whole = (store / name).read_bytes()
        (store / name).write_bytes(whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:])
        outcome = sero("data", "status", "--data", store, "--verify")
        assert outcome.code == 2, name
        assert str(store) in outcome.errors
        (store / name).write_bytes(whole)
    assert sero("data", "status", "--data", store, "--verify").code == 0


STOPPED = """
import signal, sys, time
# Ignored in what a shell started in the background or under nohup, and so on in its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from agent_envs.webshop.catalogue import importing
def build_index(*_):
    print("indexing", flush=True)
    time.sleep(120)
importing.build_index = build_index
from trainer.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def at_work(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command that has written most of a store."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "indexing\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_an_interrupted_import_leaves_nothing_behind(raw: Path, tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    with at_work("data", "import", "webshop", raw, "--out", tmp_path / "store") as process:
        assert len(os.listdir(tmp_path)) == 2
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert os.listdir(tmp_path) == ["raw"]


def test_a_rerun_removes_what_a_killed_import_left(sero: Sero, raw: Path, tmp_path: Path) -> None:
    """And neither what is being written nor what belongs to another store."""
    words = ("data", "import", "webshop", raw, "--out", tmp_path / "store")
    with at_work(*words) as process:
        process.kill()
        process.wait(60)
    assert len(os.listdir(tmp_path)) == 2
    (tmp_path / ".store.2.abcdefgh.part").mkdir()
    with at_work(*words) as process:
        (alive,) = (
            name for name in os.listdir(tmp_path) if name not in ("raw", ".store.2.abcdefgh.part")
        )
        assert sero(*words).code == 0
        assert sorted(os.listdir(tmp_path)) == sorted(
            [alive, ".store.2.abcdefgh.part", "raw", "store"]
        )


def test_names_of_files_control_no_terminal(sero: Sero, tmp_path: Path) -> None:
    folder = write_raw(tmp_path / "r\x1b[2Jaw", *small_raw(3)).products.parent
    odd = folder / "items_shuffle[red]\x1b[2J.json"
    (folder / "items_shuffle.json").rename(odd)
    outcome = sero("data", "import", "webshop", odd, "--out", tmp_path / "s\x1b[2Jtore")
    assert outcome.code == 0
    status = sero("data", "status", "--data", tmp_path / "s\x1b[2Jtore")
    missing = sero("data", "import", "webshop", tmp_path / "n\x1bo", "--out", tmp_path / "x")
    for one in (outcome, status, missing):
        assert "\x1b[2J" not in one.errors + "\n".join(one.lines)
    assert "\x1bo" not in missing.errors
    assert "s\\x1b[2Jtore" in "\n".join(outcome.lines)
    assert "items_shuffle[red]" in outcome.errors
