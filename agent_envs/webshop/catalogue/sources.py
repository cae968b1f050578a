"""Where shops come from: what an argument or the environment names, else a generated shop."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from agent_envs.errors import CorruptData, DataError, InvalidOption, MissingData
from agent_envs.webshop.catalogue.cleaning import clean_facts, clean_instructions
from agent_envs.webshop.catalogue.importing import (
    RawFiles,
    TableBuilder,
    import_files,
    read_files,
    write_store,
)
from agent_envs.webshop.catalogue.shop import Shop, check_price_seed
from agent_envs.webshop.catalogue.shop_cache import cached_store, code_hash
from agent_envs.webshop.catalogue.store import (
    HEADER,
    Tables,
    TableWriter,
    is_store,
    open_store,
)
from agent_envs.webshop.generated import generate, read_source, source_text
from agent_envs.webshop.generated.source import NAME as PREFIX
from agent_envs.webshop.generated.source import is_generated

VARIABLE = "SERO_WEBSHOP_DATA"
PRODUCTS, ATTRIBUTES, HUMANS = "items_shuffle", "items_ins_v2", "items_human_ins"
"""How the names of the original's files start; the rest is the same, `_1000.json` or `.json`."""
ON_THE_FLY_BYTES = 256 << 20
"""Raw files up to this size are imported when they are first used (20 s at most)."""
SHOPS_KEPT = 4
"""Shops that stay loaded although nothing uses them."""

_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Origin:
    """What a text or path names."""

    text: str
    """As `load_shop` understands it anywhere on this machine."""
    store: Path | None = None
    raw: RawFiles | None = None
    """At most one of the two is there; neither for a generated shop."""


def load_shop(data: Shop | str | os.PathLike[str] | None = None, *, price_seed: int = 0) -> Shop:
    """The shop that `data` names; without it that of the environment, else a generated one.

    In this order: `data` itself, ``$SERO_WEBSHOP_DATA``, and the generated shop. A path is an
    imported store, or a folder of the original's files (or its items_shuffle*.json), which are
    imported into the cache folder once. A text such as ``generated:small?seed=1`` names a
    generated shop. The same source gives the same object as long as anything uses it.

    Args:
        data: what names the shop; a `Shop` is returned as it is.
        price_seed: by which prices in a range and price limits are drawn.

    Raises:
        MissingData: nothing there that is a shop, with what named it and what to do.
        CorruptData: files that cannot be read as what they should be.
        InvalidOption: a ``generated`` text that is not understood, files that are too large to
            be imported on the way, or `data` that is none of these.
    """
    if isinstance(data, Shop):
        return data
    check_price_seed(price_seed)
    if data is not None:
        return _load(origin_of(data), price_seed)
    value = os.environ.get(VARIABLE)
    if not value:
        return _load(origin_of(PREFIX), price_seed)
    try:
        return _load(origin_of(value), price_seed)
    except MissingData as error:
        raise MissingData(
            f"${VARIABLE} is {value!r}, but: {error} Or unset {VARIABLE} to play the generated "
            "shop."
        ) from error


def origin_of(data: str | os.PathLike[str]) -> Origin:
    """What `data` names.

    Raises:
        MissingData: a path without a shop.
        InvalidOption: neither path nor text.
    """
    if not isinstance(data, str | os.PathLike):
        raise InvalidOption(f"A shop is named by a path or a text, or is a Shop; found {data!r}.")
    text = os.fspath(data)
    if isinstance(text, str) and is_generated(text):
        return Origin(source_text(read_source(text)))
    try:
        path = Path(text).expanduser().resolve()
        if is_store(path):
            return Origin(str(path), store=path)
        raw = find_raw(path)
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise MissingData(f"There is no WebShop data at {text!r:.200}: {error}.") from error
    return Origin(str(path), raw=raw)


def find_raw(path: Path) -> RawFiles:
    """The original's files in a folder (or in its subfolder `data`), or beside a product file.

    Raises:
        MissingData: they are not there.
    """
    if path.is_file():
        return _beside(path)
    for folder in (path, path / "data"):
        found = _files(folder, PRODUCTS) if folder.is_dir() else []
        if found:
            # The shortest name is the full catalogue's.
            return _beside(min(found, key=lambda file: (len(file.name), file.name)))
    if path.exists() and not path.is_dir():
        raise MissingData(
            f"There is no WebShop data at {path}: it is neither a folder nor a regular file."
        )
    what = "is neither a store nor has" if path.is_dir() else "does not exist; expected a store or"
    raise MissingData(
        f"There is no WebShop data at {path}: it {what} the original's {PRODUCTS}*.json and "
        f"{ATTRIBUTES}*.json. Set {VARIABLE} to a folder that holds them, or import them: "
        "`sero data import webshop RAW --out STORE`."
    )


def _beside(products: Path) -> RawFiles:
    folder, name = products.parent, products.name
    ending = name.removeprefix(PRODUCTS) if name.startswith(PRODUCTS) else f"_{name}"
    attributes = _matching(folder, ATTRIBUTES, ending)
    if attributes is None:
        raise MissingData(
            f"{products} needs the attribute file {ATTRIBUTES}{ending} beside it, and there is "
            f"none in {folder}. Get it from where the product file came from."
        )
    return RawFiles(products, attributes, _matching(folder, HUMANS, ending))


def _matching(folder: Path, start: str, ending: str) -> Path | None:
    """The file for the same products, else one for all products, else the only one there is."""
    for name in (f"{start}{ending}", f"{start}.json"):
        if (folder / name).is_file():
            return folder / name
    found = _files(folder, start)
    return found[0] if len(found) == 1 else None


def _files(folder: Path, start: str) -> list[Path]:
    """Regular files only: reading a pipe would wait for ever."""
    return sorted(file for file in folder.glob(f"{start}*.json") if file.is_file())


# ---------------------------------------------------------------------------- loading

_Key = tuple[Any, ...]
_loaded: WeakValueDictionary[_Key, Shop] = WeakValueDictionary()
_recent: OrderedDict[_Key, Shop] = OrderedDict()
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the time of a fork; nobody would open it in the child.
    os.register_at_fork(after_in_child=_new_lock)


def _load(origin: Origin, price_seed: int) -> Shop:
    stamp = _stamp(origin)
    with _lock:
        key = (origin.text, stamp, price_seed)
        shop = _loaded.get(key)
        if shop is None:
            alike = [one for (text, its, _), one in _loaded.items() if (text, its) == key[:2]]
            if alike:  # with another price seed; everything else can be shared
                shop = alike[0].with_price_seed(price_seed)
            else:
                shop = _made(origin, stamp, price_seed)
            _loaded[key] = shop
        _recent[key] = shop
        _recent.move_to_end(key)
        while len(_recent) > SHOPS_KEPT:
            _recent.popitem(last=False)
        return shop


def _stamp(origin: Origin) -> tuple[tuple[int, ...], ...]:
    """Sizes and times of the files of an origin."""
    if origin.store is not None:
        files = [origin.store / HEADER]
    else:
        files = list(origin.raw or ())
    try:
        seen = [os.stat(file) for file in files]
    except OSError as error:
        raise MissingData(
            f"Cannot open {error.filename}: {error.strerror}. Check the path and its permissions."
        ) from error
    return tuple((one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in seen)


def _made(origin: Origin, stamp: tuple[tuple[int, ...], ...], price_seed: int) -> Shop:
    if origin.store is not None:
        tables = open_store(origin.store)
        return Shop(tables, price_seed=price_seed, source=origin.text, origin=origin.text)
    tables = _generated(origin.text) if origin.raw is None else _from_raw(origin.raw, stamp)
    return Shop(
        tables,
        price_seed=price_seed,
        source=origin.text,
        origin=origin.text,
        is_cache=tables.folder is not None,
    )


def _from_raw(files: RawFiles, stamp: tuple[tuple[int, ...], ...]) -> Tables:
    size = sum(one[0] for one in stamp)
    if size > ON_THE_FLY_BYTES:
        raise InvalidOption(
            f"The files of {files.products.parent} have {size / 2**30:.1f} GB, too much to be "
            "imported on the way. Do it once: `sero data import webshop "
            f"{files.products.parent} --out STORE`, then name STORE in their place."
        )
    # A second change within the resolution of file times would not show.
    if max(max(one[1:]) for one in stamp) < time.time_ns() - _SETTLED_NS:
        told = repr(([os.fspath(file) for file in files], stamp, code_hash()))
        name = sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        tables = cached_store(name, lambda out: import_files(files, out))
        if tables is not None:
            return tables
    return read_files(files, None)


def _generated(text: str) -> Tables:
    def make(folder: Path | None) -> Tables:
        writer = TableWriter(folder)
        try:
            builder = TableBuilder(writer)
            for number, made in enumerate(generate(read_source(text))):
                if builder.asin_of(number, made.product) is not None:
                    facts = clean_facts(made.asin, made.attributes)
                    people = clean_instructions(made.asin, made.human)
                    builder.add(made.product, facts, people)
            return builder.finish(text)
        finally:
            writer.close()

    name = sha256(repr((text, code_hash())).encode()).hexdigest()[:32]
    tables = cached_store(name, lambda out: write_store(out, make))
    return make(None) if tables is None else tables


def reopened(
    origin: str | None,
    tables: Tables | None,
    price_seed: int,
    prices: Mapping[str, float],
    source: str,
    revision: str,
) -> Shop:
    """A shop that was sent here from another process; the one that is here already, if it is.

    Raises:
        CorruptData: its source is another by now.
    """
    with _lock:
        key = ("sent", revision, price_seed)
        shop = _loaded.get(key)
        if shop is not None:
            return shop
        if origin is not None:
            shop = _load(origin_of(origin), price_seed)
        else:
            assert tables is not None
            shop = Shop(tables, price_seed=price_seed, source=source)
        if prices:
            shop = shop.with_prices(prices)
        if shop.revision != revision:
            raise CorruptData(
                f"The shop {source!r} is not what it was when it was sent here: revision "
                f"{shop.revision[:12]}, expected {revision[:12]}. Start anew."
            )
        _loaded[key] = shop
        return shop
