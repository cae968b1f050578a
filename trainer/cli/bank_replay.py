"""Train copies of one checkpoint on the same oracle bank, each under another weight rule.

    sero bank replay rooms.parquet --run runs/first --out replays/first

Every copy starts from the same weights, with a new optimiser, and sees the same branches in the
same order; what differs is how SERO weighs the steps of a branch. Rules: `flat` (all alike),
`root` (the first alone), `depth` (a fixed decay), `depth-matched` (the decay with the mass of
`sero`), `sero` (reachability). The folder gets replay.json and the metrics of every copy, and
appears only when all is done. The bank is checked against its digests; `sero bank verify` runs it
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from trainer.cli.common import emit, interrupted, printable, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bank replay`."""

    bank: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """As `sero bank build` wrote it."""
    run: Path
    """Folder of the trained run whose checkpoint is copied; the bank must be of its tasks."""
    out: Path
    """Folder to write; it must not exist."""
    rules: Annotated[tuple[str, ...], unset("RULE")] = ()
    """Among flat, root, depth, depth-matched, sero, also with commas (default: all)."""
    delta: Annotated[float | None, unset("FLOAT")] = None
    """Decay of rule `depth`, from 0 to 1 (default: the run's, or 0.9)."""
    z: Literal["rescore", "stored"] = "rescore"
    """When z is measured: before each iteration with the copy, or once with the checkpoint."""
    mode: Literal["aux_only", "aux+rl"] = "aux_only"
    """Branches alone, or also the run's base objective on rollouts."""
    iterations: Annotated[int | None, unset("N")] = None
    """Of each copy (default: as many as take every branch once)."""
    roots_per_iteration: Annotated[int | None, unset("N")] = None
    """Branches in an iteration (default: the run's rollout.tasks)."""
    weight: Annotated[float | None, unset("FLOAT")] = None
    """Coefficient of the loss (default: the run's auxiliary.sero.weight, or 0.1)."""
    lr: Annotated[float | None, unset("FLOAT")] = None
    """Learning rate (default: the run's)."""
    seed: Annotated[int | None, unset("N")] = None
    """Of the order of the branches (default: the run's)."""
    checkpoint: Annotated[int | None, unset("N")] = None
    """Which one of the run, by its iteration (default: the last)."""
    eval_tasks: int = 20
    """Held-out tasks a split, played before and after; 0: none."""
    save: bool = False
    """Keep the model of every copy."""
    json: bool = False
    """Print what replay.json holds as one JSON object on the last line."""


def run(args: Args) -> int:
    """Replay, write, print; 0 once every copy is trained."""
    from oracles.bank import read_bank
    from trainer.banks.replay import check_new, open_replay, replay_all
    from trainer.banks.replay_settings import RULES, ReplaySettings
    from trainer.cli import progress

    check_new(args.out)
    named = tuple(name for word in args.rules for name in word.split(",") if name)
    settings = ReplaySettings(
        rules=named or tuple(RULES),
        delta=args.delta,
        z=args.z,
        mode=args.mode,
        iterations=args.iterations,
        roots=args.roots_per_iteration,
        weight=args.weight,
        lr=args.lr,
        seed=args.seed,
        eval_tasks=args.eval_tasks,
        checkpoint=args.checkpoint,
        save=args.save,
    )
    settings.check()
    bank = read_bank(args.bank)
    replay = open_replay(bank, args.run, settings)
    done = dict.fromkeys(settings.rules, 0)
    with (
        interrupted(lambda: f"{args.out} was not written. The same command begins again."),
        progress.several(settings.rules, replay.iterations) as show,
    ):

        def tell(name: str, finished: int) -> None:
            done[name] = finished
            show(done)

        report = replay_all(replay, bank, args.out, tell)
    print("\n".join(map(printable, _lines(report))))
    print(args.out / "replay.json")
    emit(report, args.json)
    return 0


def _lines(report: Mapping[str, Any]) -> list[str]:
    bank, settings, gates = report["bank"], report["settings"], report["gates"]
    whose = "the policy that" if report["checkpoint"]["collected_the_bank"] else "not the one that"
    measured = (
        f"once, with the checkpoint ({whose} collected the bank)"
        if settings["z"] == "stored"
        else "before each iteration"
    )
    lines = [
        f"{bank['branches']} branches of {bank['oracle']} from {bank['policy']}, "
        f"{gates.get('active', 0)} with an open gate, {report['rows']} rows",
        f"{settings['iterations']} iterations of {settings['roots']} branches, {settings['mode']}, "
        f"z measured {measured}",
        "",
    ]
    splits = list(report["before"])
    table = [["rule", "loss", "z", "depth", "beyond root", "grad norm", *splits]]
    before = [_wins(report["before"][split]) for split in splits]
    if splits:
        table.append(["checkpoint", "", "", "", "", "", *before])
    for name, found in report["rules"].items():
        table.append(
            [
                name,
                _ends(found["loss"], "{:.3f}"),
                _ends(found["z"], "{:.3f}"),
                _number(found["effective_depth"]["mean"], "{:.2f}"),
                _number(found["beyond_root_share"], "{:.1%}"),
                _number(found["grad_norm"], "{:.3g}"),
                *(_wins(found["after"][split]) for split in splits),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return lines + [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _wins(result: Mapping[str, Any]) -> str:
    """Success with its 95 % interval."""
    low, high = result["interval_95"]
    return f"{result['wins']}/{result['n']} ({low:.0%} to {high:.0%})"


def _ends(values: Mapping[str, float | None], form: str) -> str:
    first, last = values["first"], values["last"]
    return "-" if first is None else f"{form.format(first)} to {_number(last, form)}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
