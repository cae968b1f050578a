"""Serve the shop's web site, for people and for agents that drive a browser.

The same products, goals and rewards as in SeroWebShop-v0. Open the address that is printed: each
visitor is given a goal; /fixed_12 is a visit with goal number 12. Ctrl-C stops it. It answers this
machine alone, unless --host says otherwise; then anyone who reaches the machine can use it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

from agent_envs.errors import InvalidOption, MissingData
from trainer.cli.common import printable, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero site`."""

    data: Annotated[str | None, unset("SHOP")] = None
    """A folder of the original's files, an imported shop, or generated:small?seed=1
    (default: $SERO_WEBSHOP_DATA, else a generated shop)."""
    port: int = 3000
    """Port to listen on; 0 takes any free one."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but this machine's own opens the site to others."""
    goal_source: Annotated[Literal["human", "synthetic"] | None, unset("{human,synthetic}")] = None
    """Goals that visitors are given (default: human ones where the shop has some)."""
    attributes: bool = False
    """Show the button to a product's attributes."""
    log: Annotated[Path | None, unset("DIR")] = None
    """Write what visitors do to this folder, a file of JSON lines for each."""
    price_seed: int = 0
    """Seed of prices and price limits."""


def run(args: Args) -> int:
    """Serve until told to stop; 0 then."""
    from agent_envs.webshop.engine import Rules
    from agent_envs.webshop.shop import load_shop
    from agent_envs.webshop.site.app import Site
    from agent_envs.webshop.site.log import SessionLog
    from agent_envs.webshop.site.server import SiteServer, is_loopback

    if not 0 <= args.port <= 65535:
        raise InvalidOption(f"--port {args.port}: expected a number from 0 to 65535.")
    log = None if args.log is None else SessionLog(args.log)
    shop = load_shop(args.data, price_seed=args.price_seed)
    human = bool(len(shop.goals("human")))
    kind = args.goal_source or ("human" if human else "synthetic")
    goals = shop.goals(kind)
    if not goals:
        raise MissingData(
            f"{shop.source!r} has no {kind} goals. Choose others with --goal-source, or another "
            "shop with --data."
        )
    site = Site(shop, goals, kind, Rules(show_attributes=args.attributes), log)
    shop.index.search("warm up", 1)  # now rather than at the first visitor's search
    with _told_to_stop() as stop, SiteServer(site, args.host, args.port) as server:
        print(f"{len(shop.catalogue):,} products of {printable(shop.source)}")
        print(f"{len(goals):,} {kind} goals, /fixed_0 to /fixed_{len(goals) - 1}")
        if not is_loopback(args.host):
            print(
                f"WARNING: {args.host} is not this machine alone. Whoever reaches it can use the "
                "site; there is no password and no encryption."
            )
        print(f"serving {server.url}/ (Ctrl-C stops)", flush=True)
        while not stop:
            # Not for ever: a signal that comes just before a wait does not end it.
            time.sleep(0.2)
    print("stopped", flush=True)
    return 0


@contextmanager
def _told_to_stop() -> Iterator[list[int]]:
    """A list that the first Ctrl-C or SIGTERM is added to; the next ends the process at once."""
    stop: list[int] = []  # not an Event: the lock of one may be held where the signal comes
    numbers = (signal.SIGINT, signal.SIGTERM)

    def told(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        stop.append(number)

    before = {number: signal.signal(number, told) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
