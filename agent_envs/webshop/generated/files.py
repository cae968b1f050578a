"""Writes a generated shop as the original's three files, whole ones only, in bounded memory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from agent_envs.webshop.generated.generator import GENERATOR_VERSIONS, generate
from agent_envs.webshop.generated.source import source_text
from agent_envs.webshop.generated.spec import ShopSpec

NAMES = ("items_shuffle", "items_ins_v2", "items_human_ins")
"""Products, attributes, human-like instructions: names as in the original."""
MARKER = "generated.json"
_TEMPORARY = ".writing-"
_ABANDONED_S = 3600.0
_PUBLIC_SIZE = 1000


def file_names(products: int) -> tuple[str, str, str]:
    """The names under which the original looks for files of that many products.

    >>> file_names(1000)
    ('items_shuffle_1000.json', 'items_ins_v2_1000.json', 'items_human_ins.json')
    """
    ending = "_1000" if products == _PUBLIC_SIZE else ""
    return f"{NAMES[0]}{ending}.json", f"{NAMES[1]}{ending}.json", f"{NAMES[2]}.json"


def write_files(out: Path, spec: ShopSpec, on_product: Callable[[], None] | None = None) -> bool:
    """Write the files of a shop, unless they are there already; whether they had to be written.

    Args:
        out: folder to write to, made if need be.
        spec: of the shop.
        on_product: called after each product.

    Raises:
        FileExistsError: `out` holds files of another shop; nothing is written.
        OSError: the files cannot be written; none of them is there then.
    """
    names = file_names(spec.products)
    content = f"{source_text(spec)} version {GENERATOR_VERSIONS[spec.style]}"
    found = sorted(path.name for start in NAMES for path in out.glob(f"{start}*.json"))
    if found:
        if _content(out / MARKER) == content and set(names) <= set(found):
            return False
        raise FileExistsError(
            f"{out} holds {', '.join(found)} of another shop than {source_text(spec)}; files of "
            "two shops must not mix. Remove them or choose another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{_TEMPORARY}*"):  # of a process that was killed
        with suppress(OSError):  # of one that ended just now
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
    workshop = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=out))
    try:
        _write(workshop, names, spec, on_product)
        marker = {"source": source_text(spec), "content": content}
        (workshop / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8", newline="\n")
        # The products last: a folder that has them is complete.
        for name in (MARKER, *reversed(names)):
            os.replace(workshop / name, out / name)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return True


def _write(
    folder: Path,
    names: tuple[str, str, str],
    spec: ShopSpec,
    on_product: Callable[[], None] | None,
) -> None:
    with ExitStack() as stack:
        products, attributes, human = (
            stack.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n"))
            for name in names
        )
        parts = (_Part(products, "[]"), _Part(attributes, "{}"), _Part(human, "{}"))
        for made in generate(spec):
            parts[0].add(json.dumps(made.product))
            parts[1].add(f"{json.dumps(made.asin)}: {json.dumps(made.attributes)}")
            if made.human:
                parts[2].add(f"{json.dumps(made.asin)}: {json.dumps(made.human)}")
            if on_product is not None:
                on_product()
        for part in parts:
            part.close()


class _Part:
    """A JSON list or object that is written entry by entry, one a line."""

    def __init__(self, file: TextIO, brackets: str) -> None:
        self.file, self.end, self.joint = file, brackets[1], "\n"
        file.write(brackets[0])

    def add(self, entry: str) -> None:
        self.file.write(self.joint + entry)
        self.joint = ",\n"

    def close(self) -> None:
        self.file.write(f"\n{self.end}\n")


def _content(marker: Path) -> Any:
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("content") if isinstance(found, dict) else None
