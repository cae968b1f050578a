"""Products written for the original are cleaned into what they were."""

from __future__ import annotations

import json
from pathlib import Path

from agent_envs.webshop.catalogue import Shop, load_shop
from agent_envs.webshop.original.raw_files import write_raw_files


def check_round_trip(shop: Shop, folder: Path) -> None:
    files = write_raw_files(shop, folder)
    assert files.humans is None
    again = load_shop(folder)
    assert len(again.catalogue) == len(shop.catalogue)
    for number, product in enumerate(shop.catalogue):
        assert again.catalogue[number] == product
    assert len(again.goals("synthetic")) >= 1  # without one the original does not start


def test_a_generated_shop(tmp_path: Path) -> None:
    check_round_trip(load_shop("generated:small?seed=3"), tmp_path)
    written = json.loads((tmp_path / "items_ins_v2.json").read_text(encoding="utf-8"))
    assert sum("instruction" in facts for facts in written.values()) == 1


def test_the_thousand_products(real_shop: Shop, tmp_path: Path) -> None:
    """Ranges of prices, values with slashes, empty texts and all."""
    check_round_trip(real_shop, tmp_path)
