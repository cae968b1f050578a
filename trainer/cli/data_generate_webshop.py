"""Write a generated shop as the original WebShop's three files.

The same options write the same bytes anywhere, and the original loads them too. To play the shop:
`--data OUT`, or set SERO_WEBSHOP_DATA to OUT. Files appear when they are complete; repeating the
command writes nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data generate webshop`."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder to write to."""
    n: Annotated[int | None, unset("INT")] = None
    """Products (default: as the preset says)."""
    preset: Literal["standard", "small", "large"] = "standard"
    """standard: 1,000 products like the public ones; small: 128 in a few words each; large:
    100,000."""
    seed: int = 0
    """Names the shop: product number i of a seed is the same whatever their number."""
    categories: Annotated[tuple[str, ...], unset()] = ()
    """Only these categories (default: all five)."""
    groups: Annotated[int | None, unset("INT")] = None
    """Largest number of option groups of a product, 0 to 3 (default: as the preset says)."""
    instructed: Annotated[float | None, unset("SHARE")] = None
    """Share of products with a synthetic instruction (default: as the preset says)."""
    human: Annotated[float | None, unset("SHARE")] = None
    """Share of products with human-like instructions (default: as the preset says)."""
    json: bool = False
    """Print what was written as one JSON object on the last line."""


def run(args: Args) -> int:
    """Write the files; 0 if they are there."""
    from agent_envs.webshop.generated import source_text
    from agent_envs.webshop.generated.files import file_names, write_files
    from trainer.cli.progress import bars

    spec = shop_spec(args)
    with bars() as progress:
        bar = progress.add_task("products", total=spec.products, note="")
        try:
            written = write_files(args.out, spec, lambda: progress.advance(bar))
        except OSError as error:
            raise SeroError(f"cannot write the shop: {error}") from error
    names = file_names(spec.products)
    size = sum((args.out / name).stat().st_size for name in names)
    what = "wrote" if written else "found"
    print(f"{what} {source_text(spec)}: {', '.join(names)} in {args.out}, {size / 2**20:.1f} MB")
    print(f"play it: sero play webshop --data {args.out}")
    emit(
        {
            "out": str(args.out),
            "source": source_text(spec),
            "products": spec.products,
            "seed": spec.seed,
            "files": list(names),
            "bytes": size,
            "written": written,
        },
        args.json,
    )
    return 0


def shop_spec(args: Args) -> Any:
    """The preset with the knobs that were turned.

    Raises:
        InvalidSpec: a knob out of range.
    """
    from dataclasses import replace

    from agent_envs.webshop.generated import PRESETS

    given = {
        "products": args.n,
        "groups": args.groups,
        "instructed": args.instructed,
        "human": args.human,
        "categories": args.categories or None,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(PRESETS[args.preset], seed=args.seed, **changes)
