"""Generated shops beside the public set: alike in numbers, and no text in common."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_envs.webshop.generated import generated_files
from agent_envs.webshop.generated.product import BRANDS, brand_name
from agent_envs.webshop.generated.words import DATA
from tests.support import ROOT

RECORDED = ROOT / "benchmarks" / "results" / "generated_shop.json"
RUN = 8
"""Words in a row that no two texts share by chance."""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location("shop_script", folder / "generated_shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def real(real_data: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    folder = real_data / "webshop_1k"
    products = json.loads((folder / "items_shuffle_1000.json").read_text("utf-8"))
    return products, json.loads((folder / "items_ins_v2_1000.json").read_text("utf-8"))


def test_figures_are_within_the_bounds_of_the_report(script: ModuleType) -> None:
    recorded = json.loads(RECORDED.read_text())
    ours, _, _ = script.generated(1000, 6)
    assert script.missed(ours, recorded["public"]) == []
    assert recorded["missed"] == []


def test_bounds_can_be_missed(script: ModuleType) -> None:
    public = json.loads(RECORDED.read_text())["public"]
    assert script.missed(public, public) == []
    assert script.missed({**public, "goals": 3 * public["goals"]}, public) == ["goals"]


def test_measuring_counts_what_is_there(script: ModuleType) -> None:
    def product(asin: str, **changes: Any) -> dict[str, Any]:
        return {
            "asin": asin, "name": "Oak Desk", "full_description": "", "pricing": "$5.00",
            "small_description": ["Sturdy oak", ""], "category": "garden", "query": "desks",
            "product_category": "A › B", "customization_options": "", **changes,
        }  # fmt: skip

    options = {"color": [{"value": "red"}, {"value": "blue"}], "size": [{"value": "s"}], "x": None}
    products = [
        product("1", customization_options=options, pricing="$3.00 - $7.50"),
        product(
            "2", full_description="A very solid oak desk.", pricing="", small_description="One"
        ),
    ]
    attributes = {
        "1": {
            "attributes": ["oak", "big"],
            "instruction": "Find",
            "instruction_attributes": ["oak"],
        },
        "2": {"attributes": []},
    }
    found = script.measure(products, attributes)
    expected = {
        "products": 2, "share_garden": 1.0, "share_beauty": 0.0, "queries": 1, "title_words": 2,
        "products_of_a_query": 2, "title_characters": 8, "description_empty": 0.5,
        "description_characters": 11, "bullets": 1.5, "bullet_characters": (10 + 0 + 3) / 3,
        "price_missing": 0.5, "price_range": 0.5, "price_median": 3.0, "with_options": 0.5,
        "groups_1": 0.0, "groups_2": 0.5, "values_of_a_group": 1.5,
        "value_characters": (3 + 4 + 1) / 3, "attributes": 1, "attributes_none": 0.5,
        "attributes_distinct": 2, "attributes_in_the_text": 0.5, "instructed": 0.5,
        "instruction_attributes": 1, "goals": 2, "goals_of_a_product": 2, "path_parts": 2,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_the_recorded_public_figures_are_those_of_the_data(script: ModuleType, real: Any) -> None:
    recorded = json.loads(RECORDED.read_text())["public"]
    assert script.measure(*real) == pytest.approx(recorded, abs=6e-4)


def _runs(texts: Iterator[str]) -> set[tuple[str, ...]]:
    out = set()
    for text in texts:
        found = re.findall(r"\w+", text.lower())
        out.update(tuple(found[i : i + RUN]) for i in range(len(found) - RUN + 1))
    return out


def _texts(products: list[dict[str, Any]]) -> Iterator[str]:
    for product in products:
        yield product["name"]
        yield product["full_description"]
        points = product["small_description"]
        yield from [points] if isinstance(points, str) else points


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _strings(entry)


def test_no_text_of_real_products_is_among_ours(real: Any, real_data: Path) -> None:
    theirs, _ = real
    ours = [p for seed in range(3) for p in generated_files(f"generated?seed={seed}")[0]]
    data = [json.loads(path.read_text("utf-8")) for path in sorted(DATA.glob("*.json"))]
    known = _runs(_texts(theirs))
    assert len(known) > 50_000
    assert known & _runs(_texts(ours)) == set()
    assert known & _runs(text for file in data for text in _strings(file)) == set()
    for key in ("name", "asin", "product_category"):
        found = {p[key] for p in theirs} & {p[key] for p in ours}
        assert found <= {""}, key
    human = json.loads((real_data / "webshop_1k" / "human_goals.json").read_text("utf-8"))
    made = {
        told["instruction"].strip(".")
        for seed in range(3)
        for entries in generated_files(f"generated?seed={seed}")[2].values()
        for told in entries
    }
    assert {text.strip(".").lower() for text in human} & made == set()


def test_no_brand_is_a_word_of_a_real_title(real: Any) -> None:
    theirs = {word.lower() for p in real[0] for word in re.findall(r"\w+", p["name"])}
    ours = {brand_name(number).lower() for number in range(BRANDS)}
    assert len(ours) > 2000
    assert ours & theirs == set()
