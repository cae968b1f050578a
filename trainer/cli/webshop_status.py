"""The part of `sero data status` that is about WebShop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_envs.disk_cache import CACHE_VARIABLE
from agent_envs.webshop.catalogue import KINDS, VARIABLE, GoalSet, Kind, Shop, load_shop
from agent_envs.webshop.catalogue.cleaning import Reason
from agent_envs.webshop.catalogue.report import MEANING
from agent_envs.webshop.catalogue.shop_cache import CACHE_BYTES, cached_shops
from agent_envs.webshop.catalogue.sources import PRODUCTS
from agent_envs.webshop.catalogue.splits import SPLIT_BY, SPLITS, SplitBy
from agent_envs.webshop.catalogue.store import is_store, verify_store


def is_webshop(data: str) -> bool:
    """Whether a path names WebShop data rather than games."""
    path = Path(data).expanduser()
    try:
        if path.is_file():
            return path.name.startswith(PRODUCTS)
        folders = (path, path / "data")
        return is_store(path) or any(any(one.glob(f"{PRODUCTS}*.json")) for one in folders)
    except (OSError, ValueError):
        return False


def show(
    data: str | None,
    console: Console,
    say: Callable[[str], None],
    *,
    skipped: bool = False,
    verify: bool = False,
) -> Mapping[str, Any]:
    """Print what WebShop data is there; the same as figures.

    Args:
        data: a path or text; None: what the environment names, else the generated shop.
        console: to print tables.
        say: prints a line.
        skipped: print every entry that was left out.
        verify: compare all digests of a store.

    Raises:
        DataError: the data cannot be read.
    """
    if data is None:
        say(f"${VARIABLE}: {os.environ.get(VARIABLE) or 'not set'}")
    shop = load_shop(data)
    found_by = _found_by(data)
    say(f"WebShop source: {shop.source}  ({found_by})")
    say(f"revision: {shop.revision}")
    if shop.folder is not None and str(shop.folder) != shop.source:
        say(f"imported to: {shop.folder}")
    if verify and shop.folder is not None:
        verify_store(shop.folder)
        shop.index.verify()
        say("all check sums are right")
    sets = {
        kind: {split_by: GoalSet(shop, kind, split_by=split_by) for split_by in SPLIT_BY}
        for kind in KINDS
    }
    console.print(_table(sets))
    say(f"{len(shop.catalogue):,} products")
    for kind in KINDS:
        goals = shop.goals(kind)
        say(f"{len(goals):,} {kind} goals for {goals.products:,} products")
    _say_reasons(shop, say)
    if skipped:
        for asin, reason, why in shop.report.skip_details():
            say(f"  {asin or '(no asin)'}: {reason} ({why})")
    cache = _cache(say)
    return {
        "source": shop.source,
        "found_by": found_by,
        "folder": None if shop.folder is None else str(shop.folder),
        "revision": shop.revision,
        "products": len(shop.catalogue),
        "goals": {
            kind: {
                "all": len(shop.goals(kind)),
                "products": shop.goals(kind).products,
                **{
                    f"by_{split_by}": {split: len(one.task_ids(split)) for split in SPLITS}
                    for split_by, one in by.items()
                },
            }
            for kind, by in sets.items()
        },
        "skipped": shop.report.skip_counts(),
        "noted": shop.report.note_counts(),
        "skip_examples": {
            reason: list(shop.report.examples[reason][0])
            for reason in (*shop.report.skip_counts(), *shop.report.note_counts())
        },
        "skipped_entries": [list(one) for one in shop.report.skip_details()] if skipped else [],
        "cache": cache,
    }


def _cache(say: Callable[[str], None]) -> dict[str, Any]:
    found = cached_shops()
    if found is None:
        say(f"imported shops: the cache is turned off by ${CACHE_VARIABLE}")
        return {"folder": None}
    folder, sizes = found
    say(
        f"imported shops in {folder}: {len(sizes):,}, {sum(sizes) / 2**20:.1f} MB of at most "
        f"{CACHE_BYTES >> 20:,}"
    )
    return {"folder": str(folder), "shops": len(sizes), "bytes": sum(sizes), "limit": CACHE_BYTES}


def _found_by(data: str | None) -> str:
    if data is not None:
        return "named by --data"
    if os.environ.get(VARIABLE):
        return f"named by ${VARIABLE}"
    return "nothing names any: a generated shop, not WebShop's own products"


def _table(sets: Mapping[Kind, Mapping[SplitBy, GoalSet]]) -> Table:
    table = Table()
    table.add_column("goals")
    for split in (*SPLITS, "all"):
        table.add_column(split, justify="right")
    for kind, by in sets.items():
        for split_by, goals in by.items():
            numbers = [len(goals.task_ids(split)) for split in SPLITS]
            table.add_row(
                f"{kind}, split by {split_by}", *(f"{n:,}" for n in (*numbers, len(goals)))
            )
    return table


def _say_reasons(shop: Shop, say: Callable[[str], None]) -> None:
    """A line for each reason, with its first example."""
    report = shop.report
    for title, counts in (("left out", report.skip_counts()), ("kept, but", report.note_counts())):
        for reason, number in counts.items():
            asin, why = report.examples[reason][0]
            say(
                f"  {title}: {number:,} {MEANING[Reason(reason)]}, for example "
                f"{asin or '(no asin)'}: {why}"
            )
