"""Collect branches of an oracle from failed episodes of a policy, and keep them in a file.

The policy plays until as many episodes failed as branches are wanted. From one state of each, drawn
with equal chances, the oracle plays on. The same arguments make the same file. `sero bank verify`
runs it again.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agent_envs.errors import SeroError
from trainer.cli.common import emit, unset

if TYPE_CHECKING:
    from oracles.bank import BankHeader, BankRow
    from oracles.branches import EnvRecipe
    from oracles.walks import Walk


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bank build`."""

    out: Path
    """The file to write; it must not exist."""
    env: Annotated[str | None, unset("ENV")] = None
    """Environment: `alfworld`, `webshop`, or a registered id (default: alfworld, or the run's)."""
    policy: str = "random"
    """`random` or `first` among the admissible commands, or the folder of a trained run."""
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
    from oracles.branches import BranchRunner
    from oracles.walks import collect, gate_shares
    from trainer.oracle_registry import make_oracle

    _check(args)
    recipe, oracle, policy, played, provenance = _source(args)
    factory = partial(make_oracle, oracle, None, recipe.env_id)
    with BranchRunner(factory, (recipe.env_id, recipe.kwargs), workers=args.workers) as runner:
        rows, rollouts = collect(
            played,
            runner,
            args.branches,
            oracle=oracle,
            policy=policy,
            seed=args.seed,
            max_depth=args.max_depth,
        )
    header = _header(recipe, oracle, policy, args.seed, provenance)
    digest = write_bank(args.out, header, rows)
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
        print(f"  {reason}: {number}")
    print(f"{args.out}, digest {digest}")
    emit(figures, args.json)
    return 0


def _check(args: Args) -> None:
    for name, least in (("branches", 1), ("seed", 0), ("workers", 0)):
        if getattr(args, name) < least:
            raise SeroError(f"--{name} {getattr(args, name)}: expected {least} or more.")
    if args.max_depth is not None and args.max_depth < 1:
        raise SeroError(f"--max-depth {args.max_depth}: expected 1 or more.")
    if args.out.exists():
        raise SeroError(f"--out {args.out} exists, and a bank is never changed. Name a new file.")


def _source(
    args: Args,
) -> tuple[EnvRecipe, str, str, Iterator[Walk], dict[str, Any]]:
    """Environment, oracle, policy, its episodes, and what is known of its origin."""
    from oracles.branches import EnvRecipe
    from oracles.walks import PLAYERS, walks
    from trainer.cli.play import find_env

    env_id = None if args.env is None else _registered(args.env) or find_env(args.env)
    if args.policy in PLAYERS:
        env_id = env_id or find_env("alfworld")
        recipe = EnvRecipe(env_id, _options(args, env_id))
        oracle = _oracle(args.oracle, env_id)
        return recipe, oracle, args.policy, walks(recipe(), PLAYERS[args.policy], args.seed), {}
    if not Path(args.policy).is_dir():
        raise SeroError(
            f"--policy {args.policy}: neither {' nor '.join(PLAYERS)}, and there is no such folder."
        )
    for name in ("data", "max_steps"):
        if getattr(args, name) is not None:
            raise SeroError(
                f"--{name.replace('_', '-')}: a trained run has its own. Leave it out, or play "
                f"with --policy {' or '.join(PLAYERS)}."
            )
    from trainer.bank_policy import load_policy_of

    trained = load_policy_of(Path(args.policy), args.split)
    if env_id not in (None, trained.recipe.env_id):
        raise SeroError(f"--env {args.env}: the run was trained on {trained.recipe.env_id}.")
    oracle = _oracle(args.oracle, trained.recipe.env_id)
    told = {"checkpoint": trained.digest}
    return trained.recipe, oracle, trained.name, trained.walks(args.seed), told


def _registered(name: str) -> str | None:
    return name if name in gymnasium.registry else None


def _options(args: Args, env_id: str) -> dict[str, Any]:
    """Arguments of the environment, as the bank keeps them."""
    entry: Any = gymnasium.registry[env_id].entry_point
    known = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry)
    options = {
        name: value
        for name in ("data", "split", "max_steps")
        if (value := getattr(args, name)) is not None
    }
    for name in options.keys() - known.parameters.keys():
        raise SeroError(f"--{name.replace('_', '-')}: {env_id} has no such option.")
    if "split" in known.parameters:
        options.setdefault("split", "train")
    return options


def _oracle(name: str, env_id: str) -> str:
    """The oracle's own name; `ConfigError` where there is none, before anything is played."""
    from trainer.environments import PLANNER, environment_of
    from trainer.oracle_registry import make_oracle

    make_oracle(name, None, env_id)
    return next(iter(environment_of(env_id).oracles)) if name == PLANNER else name


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
