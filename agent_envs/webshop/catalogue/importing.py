"""From the original's files to a store, in one pass and in bounded memory.

Memory holds one product, about 120 bytes for each asin seen and 24 for each entry of the other
files, and what the search index needs while it is built. All else goes straight to disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_envs.errors import CorruptData, MissingData
from agent_envs.webshop.catalogue.catalogue import Catalogue, asin_tables, encode_product
from agent_envs.webshop.catalogue.cleaning import (
    Facts,
    Instruction,
    Reason,
    asin_of,
    clean_facts,
    clean_instructions,
    clean_product,
    fold,
    too_long,
)
from agent_envs.webshop.catalogue.goals import KINDS, GoalWriter
from agent_envs.webshop.catalogue.json_stream import entries_of_list, entries_of_object
from agent_envs.webshop.catalogue.lookup import Lookup
from agent_envs.webshop.catalogue.report import Report
from agent_envs.webshop.catalogue.store import INDEX, Tables, TableWriter
from agent_envs.webshop.catalogue.store_place import new_folder
from agent_envs.webshop.search import SearchIndex, document_text

Progress = Callable[[str, int, int | None], None]
"""Called with what is being read or built, how much is done, and of how much if known."""
RULES = 1
"""Version of the rules of cleaning and of goals; bumped when they give something else."""

_TELL_EVERY = 256


@dataclass(frozen=True, slots=True)
class RawFiles:
    """The original's files of one shop."""

    products: Path
    attributes: Path
    humans: Path | None = None

    def __iter__(self) -> Iterator[Path]:
        yield from (self.products, self.attributes)
        if self.humans is not None:
            yield self.humans


def import_files(
    files: RawFiles,
    out: Path,
    *,
    products: int | None = None,
    replace: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Write the store `out` from the original's files; returns `out`.

    Args:
        products: take only so many entries of the product file, counted before any is left out.
        replace: whether a store that is there already may be replaced.

    Raises:
        MissingData, CorruptData: a file is not there, or not what it should be.
        InvalidOption: something is at `out` already.
        DataError: the store cannot be written.
    """
    return write_store(
        out,
        lambda folder: read_files(files, folder, products=products, progress=progress),
        replace=replace,
        progress=progress,
    )


def write_store(
    out: Path,
    make: Callable[[Path], Tables],
    *,
    replace: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Write the store `out` of the tables that `make` writes into a folder; returns `out`.

    Raises:
        InvalidOption: something is at `out` already.
        DataError: the store cannot be written.
    """
    with new_folder(out, replace=replace) as part:
        index = build_index(Catalogue(make(part)), progress)
        (part / INDEX).mkdir()
        index.save(part / INDEX)
    return out


def read_files(
    files: RawFiles,
    folder: Path | None,
    *,
    products: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Tables:
    """The tables of the original's files, in `folder` or in memory; without a search index.

    Raises:
        MissingData, CorruptData: a file is not there, or not what it should be.
    """

    def telling(path: Path) -> Callable[[int, int], None]:
        return lambda done, total: progress(f"reading {path.name}", done, total)

    humans: Iterable[tuple[str, Any]] = ()
    if files.humans is not None:
        humans = entries_of_object(files.humans, telling(files.humans))
    try:
        return build_tables(
            entries_of_list(files.products, telling(files.products)),
            entries_of_object(files.attributes, telling(files.attributes)),
            humans,
            folder,
            source=str(files.products),
            limit=products,
        )
    except CorruptData as error:
        raise CorruptData(f"{files.products.parent}: {error}") from error


def build_tables(
    products: Iterable[Any],
    attributes: Iterable[tuple[str, Any]],
    humans: Iterable[tuple[str, Any]],
    folder: Path | None,
    *,
    source: str,
    limit: int | None = None,
) -> Tables:
    """The tables of a shop from entries as the original's files have them.

    Args:
        products: entries of the product file.
        attributes: (asin, entry) of the attribute file.
        humans: (asin, instructions) of the human instruction file.
        folder: where to write them; None keeps them in memory.
        source: where they come from, for people.
        limit: entries of `products` to look at.

    Raises:
        CorruptData: an entry is not what it should be.
        MissingData: there is no product.
    """
    writer = TableWriter(folder)
    known = Lookup(((asin, list(clean_facts(asin, raw))) for asin, raw in attributes), folder)
    people = Lookup(
        ((asin, [list(one) for one in clean_instructions(asin, raw)]) for asin, raw in humans),
        folder,
    )
    found = 0
    try:
        builder = TableBuilder(writer)
        for number, raw in enumerate(products):
            if limit is not None and number >= limit:
                break
            asin = builder.asin_of(number, raw)
            if asin is None:
                continue
            facts, instructions = known.get(asin), people.get(asin) or ()
            found += len(instructions)
            builder.add(
                raw,
                None if facts is None else _facts(facts),
                [Instruction(text, tuple(a), tuple(b)) for text, a, b in instructions],
            )
        builder.note_unknown(people, found)
        return builder.finish(source, limit)
    finally:
        known.close()
        people.close()
        writer.close()


class TableBuilder:
    """Takes products one by one, each with its instructions."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._records = writer.records("products")
        self._goals = {kind: GoalWriter(kind, writer.records(kind)) for kind in KINDS}
        self._report = Report()
        self._prices = array("d")
        self._asins: list[str] = []
        self._seen: set[str] = set()
        self._odd: dict[str, str] = {}  # asins that are not their own folded form, by that form

    def asin_of(self, number: int, raw: Any) -> str | None:
        """The asin of entry `number` of the product file; None if the entry is left out.

        Raises:
            CorruptData: the entry is no product.
        """
        asin, note = asin_of(raw, number)
        if note is None:
            note = self._repeated(asin, number)
        if note is None:
            return asin
        self._report.add(note[0], asin, note[1])
        return None

    def add(
        self, raw: Mapping[str, Any], facts: Facts | None, people: Sequence[Instruction]
    ) -> None:
        """Clean the entry that `asin_of` let pass last, and add it with its goals."""
        asin = raw["asin"]
        product, notes = clean_product(raw, facts)
        long = too_long(product)
        if long is not None:
            self._report.add(Reason.LONG_TEXT, asin, long)
            return
        for reason, why in {reason: (reason, why) for reason, why in reversed(notes)}.values():
            self._report.add(reason, asin, why)
        place = len(self._asins)
        self._asins.append(asin)
        self._prices.extend((product.price_range[0], product.price_range[-1]))
        self._records.add(encode_product(product))
        if facts is not None:
            amiss = self._goals["synthetic"].add_synthetic(place, product, facts)
            if amiss is not None:
                self._report.add(amiss, asin, "its synthetic instruction")
        for which, one in enumerate(people):
            amiss = self._goals["human"].add_human(place, product, which, one)
            if amiss is not None:
                self._report.add(amiss, asin, f"human instruction {which}")

    def _repeated(self, asin: str, number: int) -> tuple[Reason, str] | None:
        folded = fold(asin)
        if folded not in self._seen:
            self._seen.add(folded)
            if folded != asin:
                self._odd[folded] = asin
            return None
        before = self._odd.get(folded, folded)
        if before != asin:
            raise CorruptData(
                f"The products {before!r} and {asin!r} (entry {number:,}) differ in upper and "
                "lower case only, which a click on an asin cannot tell apart. Remove one of them."
            )
        return Reason.REPEATED_ASIN, f"entry {number:,} repeats it"

    def finish(self, source: str, limit: int | None = None) -> Tables:
        """Write the rest.

        Raises:
            MissingData: there is no product.
        """
        if not self._asins:
            raise MissingData(
                f"There is no product in {source}: {sum(self._report.counts.values()):,} entries "
                "were looked at, none was kept. Give items_shuffle.json of WebShop."
            )
        arrays = self._writer.arrays
        arrays["products_prices"] = np.array(self._prices, dtype=np.float64).reshape(-1, 2)
        arrays.update(asin_tables(self._asins))
        for goals in self._goals.values():
            arrays.update(goals.arrays())
        return self._writer.finish(
            {
                "rules": RULES,
                "source": source,
                "products": len(self._asins),
                "limit": limit,
                "plain_asins": not self._odd,
                "goals": {kind: len(arrays[f"{kind}_order"]) for kind in KINDS},
                "report": self._report.as_dict(),
            }
        )

    def note_unknown(self, people: Lookup, found: int) -> None:
        """Note human instructions whose product is not there, all but `found` of them."""
        unknown = -found
        example = ""
        for asin, instructions in people.pairs():
            unknown += len(instructions)
            if not example and fold(asin) not in self._seen:
                example = asin
        if unknown:
            self._report.add(Reason.UNKNOWN_PRODUCT, example, "no product of this asin", unknown)


def _facts(told: Sequence[Any]) -> Facts:
    attributes, instruction, wanted = told
    return Facts(None if attributes is None else tuple(attributes), instruction, tuple(wanted))


def build_index(
    catalogue: Catalogue, progress: Progress = lambda what, done, total: None
) -> SearchIndex:
    """The search index of a catalogue.

    Products are read past the catalogue's cache, one at a time.
    """

    def texts() -> Iterator[str]:
        for number, product in enumerate(catalogue):
            if number % _TELL_EVERY == 0:
                progress("indexing", number, len(catalogue))
            yield document_text(product)
        progress("indexing", len(catalogue), len(catalogue))

    return SearchIndex.build(texts(), Asins(catalogue))


class Asins(Sequence[str]):
    """The asins of a catalogue by number, none of them kept."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __len__(self) -> int:
        return len(self._catalogue)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self._catalogue.asin(n) for n in range(*number.indices(len(self)))]
        return self._catalogue.asin(range(len(self))[number])
