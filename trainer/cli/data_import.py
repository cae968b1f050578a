"""Convert WebShop's original files to a store that opens at once, whatever its size.

RAW is a folder that holds items_shuffle*.json, items_ins_v2*.json and, for human goals,
items_human_ins*.json; or one product file, with the others beside it. The files are read piece by
piece, so the 1.18 million products of the full catalogue need little memory. To play the store:
`--data STORE`, or set SERO_WEBSHOP_DATA to STORE. An interrupted command leaves nothing behind.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, printable, unset

ENVIRONMENTS = ("webshop",)


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data import webshop`."""

    raw: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RAW")]
    """Folder of the original's files, or one items_shuffle*.json."""
    out: Annotated[Path, tyro.conf.arg(metavar="STORE")]
    """Folder to write."""
    products: Annotated[int | None, unset("INT")] = None
    """Take only the first entries of the product file, as the original's `num_products` (default:
    all)."""
    force: bool = False
    """Replace a store that is there."""
    json: bool = False
    """Print what was written as one JSON object on the last line."""


def parse(words: Sequence[str]) -> Args:
    """Read the command's words: `webshop RAW --out STORE`."""
    from types import SimpleNamespace

    from trainer.cli.common import parse_args

    rest = list(words)
    if rest and rest[0] in ENVIRONMENTS:
        del rest[0]
    module = SimpleNamespace(Args=Args, __doc__=__doc__)
    args = parse_args(module, "sero data import webshop", rest)
    assert isinstance(args, Args)
    return args


def run(args: Args) -> int:
    """Write the store and open it; 0 if it has a product and a goal."""
    from agent_envs.webshop.catalogue import KINDS, import_files, load_shop
    from agent_envs.webshop.catalogue.sources import origin_of
    from trainer.cli.progress import bars

    if args.products is not None and args.products < 1:
        raise SeroError(f"--products is {args.products}; give a whole number from 1 up.")
    origin = origin_of(args.raw)
    if origin.raw is None:
        raise SeroError(f"{args.raw} is a store already; give a folder of the original's files.")
    with _ended_in_order(), bars() as progress:
        shown: dict[str, object] = {}

        def on_progress(what: str, done: int, total: int | None) -> None:
            if what not in shown:
                shown[what] = progress.add_task(printable(what), total=total, note="")
            progress.update(shown[what], completed=done, total=total)  # type: ignore[arg-type]

        out = import_files(
            origin.raw,
            args.out.expanduser().absolute(),
            products=args.products,
            replace=args.force,
            progress=on_progress,
        )
    shop = load_shop(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    goals = {kind: len(shop.goals(kind)) for kind in KINDS}
    told = ", ".join(f"{number:,} {kind}" for kind, number in goals.items())
    place = printable(str(out))
    print(
        f"wrote {len(shop.catalogue):,} products and {told} goals to {place}, {size / 2**20:.1f} MB"
    )
    left_out = sum(shop.report.skip_counts().values())
    if left_out:
        print(f"{left_out:,} entries were left out: `sero data status --data {place}` says why")
    print(f"play them: sero play webshop --data {place}")
    emit(
        {
            "out": str(out),
            "files": [str(file) for file in origin.raw],
            "products": len(shop.catalogue),
            "goals": goals,
            "bytes": size,
            "revision": shop.revision,
            "skipped": shop.report.skip_counts(),
            "noted": shop.report.note_counts(),
        },
        args.json,
    )
    return 0 if any(goals.values()) else 1


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does: what is half written is deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def leave(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would stop the cleaning
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):  # the latter not on every system
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
