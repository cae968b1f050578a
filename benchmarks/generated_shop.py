"""Generated shops beside the public set: writes benchmarks/results/generated_shop.json.

    python benchmarks/generated_shop.py --data path/to/webshop_1k    # or $SERO_TEST_DATA

Measures the raw files of the public set of 1,000 products and as many generated products of
several seeds, and prints both side by side. Fails if a figure that is compared differs by more than
its bound. Without data only the generated figures are printed and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import record
from rich.console import Console
from rich.table import Table

from agent_envs.webshop.generated.generator import GENERATOR_VERSIONS, generated_files
from agent_envs.webshop.generated.spec import CATEGORIES, STANDARD
from trainer.cli.common import machine

BOUNDS: dict[str, float] = {
    "products": 0.0,
    **{f"share_{category}": 0.15 for category in CATEGORIES},
    "queries": 0.15,
    "products_of_a_query": 0.15,
    "title_characters": 0.1,
    "title_words": 0.1,
    "description_empty": 0.12,
    "description_characters": 0.15,
    "bullets": 0.1,
    "bullet_characters": 0.12,
    "price_missing": 0.2,
    "price_range": 0.2,
    "price_quartile_1": 0.25,
    "price_median": 0.25,
    "price_quartile_3": 0.35,
    "with_options": 0.12,
    "groups_1": 0.2,
    "groups_2": 0.2,
    "values_of_a_group": 0.15,
    "value_characters": 0.25,
    "attributes": 0.15,
    "attributes_none": 0.2,
    "attributes_distinct": 0.35,
    "attributes_in_the_text": 0.2,
    "instructed": 0.1,
    "instruction_attributes": 0.2,
    "goals": 0.25,
    "goals_of_a_product": 0.25,
    "path_parts": 0.1,
}
"""Figure -> largest relative difference from the public set."""


def measure(
    products: Sequence[Mapping[str, Any]], attributes: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Everything the report says about one set; lengths are in characters."""
    count = len(products)
    groups = [[len(v) for v in (p["customization_options"] or {}).values() if v] for p in products]
    told = [attributes[p["asin"]] for p in products]
    bullets = [_bullets(p) for p in products]
    prices = [_prices(p["pricing"]) for p in products]
    first = sorted(price[0] for price in prices if price)
    queries = Counter(p["query"] for p in products)
    categories = Counter(p["category"] for p in products)
    goals = [math.prod(g) for g, a in zip(groups, told, strict=True) if a.get("instruction")]
    asked = [len(a["instruction_attributes"]) for a in told if a.get("instruction")]
    values = [
        len(value["value"])
        for p in products
        for group in (p["customization_options"] or {}).values()
        for value in group or ()
    ]
    found = [
        name.lower() in text
        for p, points, a in zip(products, bullets, told, strict=True)
        for text in [" ".join([p["name"], p["full_description"], *points]).lower()]
        for name in a["attributes"]
    ]
    texts = [p["full_description"] for p in products]
    return {
        "products": count,
        **{f"share_{name}": categories[name] / count for name in CATEGORIES},
        "queries": len(queries),
        "products_of_a_query": mean(queries.values()),
        "title_characters": mean(len(p["name"]) for p in products),
        "title_characters_5": _at([len(p["name"]) for p in products], 0.05),
        "title_characters_95": _at([len(p["name"]) for p in products], 0.95),
        "title_words": mean(len(p["name"].split()) for p in products),
        "description_empty": mean(not text for text in texts),
        "description_characters": mean(map(len, texts)),
        "bullets": mean(map(len, bullets)),
        "bullet_characters": mean(len(point) for points in bullets for point in points),
        "bullet_characters_median": _at([len(x) for points in bullets for x in points], 0.5),
        "price_missing": mean(not price for price in prices),
        "price_range": mean(len(price) > 1 for price in prices),
        "price_quartile_1": _at(first, 0.25),
        "price_median": _at(first, 0.5),
        "price_quartile_3": _at(first, 0.75),
        "price_95": _at(first, 0.95),
        "with_options": mean(bool(g) for g in groups),
        **{f"groups_{n}": mean(len(g) == n for g in groups) for n in (1, 2, 3)},
        "values_of_a_group": mean(n for g in groups for n in g),
        "values_of_a_group_median": _at([n for g in groups for n in g], 0.5),
        "values_of_a_group_95": _at([n for g in groups for n in g], 0.95),
        "value_characters": mean(values),
        "attributes": mean(len(a["attributes"]) for a in told),
        "attributes_none": mean(not a["attributes"] for a in told),
        "attributes_distinct": len({name for a in told for name in a["attributes"]}),
        "attributes_in_the_text": mean(found),
        "instructed": len(goals) / count,
        "instruction_attributes": mean(asked),
        "goals": sum(goals),
        "goals_of_a_product": mean(goals),
        "goals_of_a_product_median": _at(goals, 0.5),
        "goals_of_a_product_largest": max(goals),
        "path_parts": mean(len(p["product_category"].split("›")) for p in products),
    }


def _bullets(product: Mapping[str, Any]) -> list[str]:
    points = product["small_description"]
    return [points] if isinstance(points, str) else list(points)


def _prices(pricing: str) -> list[float]:
    return [float(re.sub(r"[^\d.]", "", part)) for part in pricing.split("$")[1:]]


def _at(values: Iterable[float], share: float) -> float:
    """The value at this share of the ordered values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def generated(products: int, seeds: int) -> tuple[dict[str, float], float, list[int]]:
    """Mean figures over seeds, milliseconds a product, and the goals of each seed."""
    found, begin = [], time.process_time()
    for seed in range(seeds):
        made, attributes, _ = generated_files(replace(STANDARD, products=products, seed=seed))
        found.append((made, attributes))
    milliseconds = 1000 * (time.process_time() - begin) / (products * seeds)
    figures = [measure(*files) for files in found]
    means = {key: mean(each[key] for each in figures) for key in figures[0]}
    return means, milliseconds, [int(each["goals"]) for each in figures]


def missed(ours: Mapping[str, float], real: Mapping[str, float]) -> list[str]:
    """Figures that differ by more than their bound."""
    return [
        name
        for name, bound in BOUNDS.items()
        if abs(ours[name] - real[name]) > bound * abs(real[name]) + 1e-9
    ]


def show(ours: Mapping[str, float], real: Mapping[str, float] | None) -> None:
    """Print both side by side."""
    table = Table("mean, share or quantile", "generated", "public", "difference", "bound")
    for name, value in ours.items():
        theirs = real[name] if real else None
        off = f"{value / theirs - 1:+.0%}" if theirs else ""
        bound = f"{BOUNDS[name]:.0%}" if name in BOUNDS else ""
        public = "" if theirs is None else f"{theirs:.4g}"
        table.add_row(name.replace("_", " "), f"{value:.4g}", public, off, bound)
    Console(highlight=False).print(table)


def main() -> int:
    """Measure, print, keep; 0 if every figure is within its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    data = os.environ.get("SERO_TEST_DATA")
    default = str(Path(data) / "webshop_1k") if data else None
    parser.add_argument("--data", default=default, help="folder of the public raw files")
    parser.add_argument("--seeds", type=int, default=10, help="shops to generate")
    args = parser.parse_args()
    real, count = None, 1000
    if args.data is not None:
        folder = Path(args.data)
        products = json.loads((folder / "items_shuffle_1000.json").read_text("utf-8"))
        attributes = json.loads((folder / "items_ins_v2_1000.json").read_text("utf-8"))
        real, count = measure(products, attributes), len(products)
    ours, milliseconds, goals = generated(count, args.seeds)
    show(ours, real)
    print(f"{args.seeds} shops of {count} products, {milliseconds:.2f} ms a product; goals {goals}")
    if real is None:
        print("no public set to compare with: name one with --data, or set SERO_TEST_DATA")
        return 0
    failed = missed(ours, real)
    print(f"off by more than their bound: {', '.join(failed) or 'none'}")
    record.write(
        "generated_shop",
        {
            "products": count,
            "seeds": args.seeds,
            "generator_versions": GENERATOR_VERSIONS,
            "generate_ms": round(milliseconds, 3),
            "goals_by_seed": goals,
            "generated": {name: round(value, 3) for name, value in ours.items()},
            "public": {name: round(value, 3) for name, value in real.items()},
            "bounds": BOUNDS,
            "missed": failed,
            "machine": machine(),
        },
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
