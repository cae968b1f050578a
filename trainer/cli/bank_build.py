"""Collect branches of an oracle from failed episodes of a policy, and keep them in a file.

The policy plays until as many episodes failed as branches are wanted. From one state of each, drawn
with equal chances, the oracle plays on. The same arguments make the same file. `sero bank verify`
runs it again.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent_envs.errors import SeroError
from trainer.cli.common import emit, printable, unset

if TYPE_CHECKING:
    from oracles.bank import BankHeader, BankRow
    from oracles.branches import EnvRecipe


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bank build`."""

    out: Path
    """The file to write; it must not exist."""
    env: Annotated[str | None, unset("ENV")] = None
    """Environment: `alfworld`, `webshop`, a registered id, or `module:name`, a function without
    arguments that makes one (default: alfworld, or the run's)."""
    policy: str = "random"
    """`random` or `first` among the admissible commands, the folder of a trained run, or
    `module:name`, a function from (observation, info) to a command."""
    oracle: str = "planner"
    """One of the environment's own (`planner`: its first), or `module:factory`."""
    branches: int = 100
    """How many."""
    seed: int = 0
    """Of the tasks, the policy's draws, and the roots."""
    data: Annotated[str | None, unset("DATA")] = None
    """As for `sero play`; a trained run has its own (default: what is found, else generated)."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """Whose tasks are played (default: train, or the run's)."""
    max_steps: Annotated[int | None, unset("N")] = None
    """Steps in an episode (default: the environment's, or the run's)."""
    max_depth: Annotated[int | None, unset("N")] = None
    """Longest branch (default: as many steps as were left at the root)."""
    workers: int = 0
    """Processes that run the branches; changes no branch. 0: this one."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Collect, write, print; 0 once the bank is written."""
    import pyarrow  # noqa: F401  (missing packages are said before anything is played)

    from oracles.bank import write_bank
    from oracles.bank_format import check_header
    from oracles.branches import BranchRunner
    from oracles.walks import collect, gate_shares
    from trainer.runs.outputs import ready_folder
    from trainer.worlds.sources import of_somebody, resolve

    _check(args)
    out = Path(os.path.abspath(args.out))  # somebody's code may go to another folder
    options = {name: getattr(args, name) for name in ("data", "split", "max_steps")}
    source = resolve(
        env=args.env, policy=args.policy, oracle=args.oracle, seed=args.seed, options=options
    )
    recipe, oracle, policy = source.recipe, source.oracle, source.policy
    ready_folder(out.parent, "--out")
    with of_somebody(recipe):
        header = _header(recipe, oracle, policy, args.seed, source.provenance)
    check_header(out, header)  # no hour is played in vain
    runners = BranchRunner(source.make_oracle, recipe, workers=args.workers)
    with of_somebody(recipe), runners as runner:
        rows, rollouts = collect(
            source.played,
            runner,
            args.branches,
            oracle=oracle,
            policy=policy,
            seed=args.seed,
            max_depth=args.max_depth,
        )
    _check_new(out)  # another process may have been faster
    digest = write_bank(out, header, rows)
    figures = _figures(rows, rollouts) | {
        "env": recipe.env_id,
        "oracle": oracle,
        "policy": policy,
        "out": str(args.out),
        "digest": digest,
    }
    shares = gate_shares(rows)
    figures["gate_open"] = shares
    print(
        f"{len(rows)} branches of {oracle} from {rollouts} episodes of {policy}, "
        f"{figures['episodes_won']} of which were won"
    )
    print(
        f"  {figures['valid']} valid, {figures['success']} successful, "
        f"{figures['mean_steps']:.1f} steps on average"
    )
    print(
        "  better than the policy: "
        + ", ".join(f"{share:.1%} by {target}" for target, share in shares.items())
    )
    for reason, number in figures["reasons"].items():
        print(f"  {reason}: {number}{_first(rows, reason)}")
    print(f"{args.out}, digest {digest}")
    emit(figures, args.json)
    return 0


def _check(args: Args) -> None:
    for name, least in (("branches", 1), ("seed", 0), ("workers", 0)):
        if getattr(args, name) < least:
            raise SeroError(f"--{name} {getattr(args, name)}: expected {least} or more.")
    if args.max_depth is not None and args.max_depth < 1:
        raise SeroError(f"--max-depth {args.max_depth}: expected 1 or more.")
    _check_new(args.out)


def _check_new(out: Path) -> None:
    if out.exists():
        raise SeroError(f"--out {out} exists, and a bank is never changed. Name a new file.")


def _header(
    recipe: EnvRecipe, oracle: str, policy: str, seed: int, provenance: dict[str, Any]
) -> BankHeader:
    from oracles.bank import header_of

    env = recipe()
    try:
        return header_of(
            env, recipe, oracle=oracle, policy=policy, seed=seed, provenance=provenance
        )
    finally:
        env.close()


def _first(rows: list[BankRow], reason: str) -> str:
    """What the oracle or the environment said the first time that it failed."""
    if not reason.endswith("_error"):
        return ""
    details = (row.branch.detail for row in rows if reason in row.branch.reasons)
    return printable(f" (the first: {next(details)[:320]})")


def _figures(rows: list[BankRow], rollouts: int) -> dict[str, Any]:
    branches = [row.branch for row in rows]
    reasons = Counter(reason for branch in branches for reason in branch.reasons)
    return {
        "branches": len(rows),
        "episodes": rollouts,
        "episodes_won": rollouts - len(rows),
        "valid": sum(branch.valid for branch in branches),
        "success": sum(branch.success for branch in branches),
        "mean_steps": sum(len(branch.steps) for branch in branches) / len(rows),
        "reasons": dict(sorted(reasons.items())),
    }
