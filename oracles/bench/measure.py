"""One measurement: roots from a policy's failed episodes, restored, and played on by an oracle.

Promises (tests/oracles/bench/):

1. What the environment or the oracle does wrong at a root is in the figures; nothing is raised for
   it. Arguments that make no sense, and a policy that hardly fails, are typed errors.
2. A branch counts for what its commands do alone: they are run again without the oracle, so that
   one that reaches into the environment gains nothing by it.
3. The same arguments give the same figures, but for the times, if the oracle answers alike.
4. Roots are those that `sero bank build` takes for the same policy and seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, cast

from agent_envs.errors import InvalidOption
from oracles.base import Oracle
from oracles.bench.cost import step_costs
from oracles.bench.fidelity import Clock, restore_figures, with_branches
from oracles.bench.figures import Measured, Probe
from oracles.bench.outcomes import (
    TimedOracle,
    carried_out,
    first_states,
    gate_figures,
    oracle_figures,
    repeats_alike,
)
from oracles.branch import Branch
from oracles.branches import BranchRequest, BranchRunner, EnvRecipe, EnvSource, OracleFactory
from oracles.leak_audit import audit
from oracles.walks import Walk, draw_roots

__all__ = ["DECISION_S", "Progress", "measure"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many of it are done, and how many there are."""

TARGETS = ("success", "score", "reward")
DECISION_S = 120.0
"""Seconds that one answer of an oracle may take, unless told otherwise."""


def measure(
    recipe: EnvSource,
    played: Iterator[Walk],
    oracle: OracleFactory,
    *,
    roots: int,
    seed: int,
    target: str = "success",
    return_scale: float = 1.0,
    from_reset: int = 32,
    decision_s: float | None = DECISION_S,
    on_progress: Progress | None = None,
    clock: Clock = perf_counter,
) -> Measured:
    """Everything about an oracle that can be judged without a model.

    Args:
        recipe: makes environments of the kind that `played` comes from.
        played: episodes of the policy, as many as it takes until `roots` of them failed.
        oracle: makes the oracle; called twice, for a second run of some branches.
        roots: states to start from, one of each failed episode.
        seed: keys the draws of the roots and of the interval, and the tasks for `from_reset`.
        target: what counts as the return: `success`, `score` (the graded one) or `reward`.
        return_scale: gap of the return that opens the gate fully.
        from_reset: tasks that the oracle plays from their start; 0: none.
        decision_s: seconds that one answer of the oracle may take; a longer one is a timeout. None:
            as long as it takes. Bounds Python code in the main thread, see `oracles.bench.limited`.
        on_progress: told about progress.
        clock: seconds, for restores and decisions.

    Raises:
        InvalidOption: an argument that makes no sense.
        BankBuildError: hardly an episode fails.
        MissingExtra: the oracle needs a package that is not installed.
    """
    _check(roots, seed, target, from_reset)
    _positive("return_scale", return_scale)
    if decision_s is not None:
        _positive("decision_s", decision_s)
    make = EnvRecipe(*recipe) if isinstance(recipe, tuple) else recipe
    tell = on_progress or _silent
    drawn = draw_roots(_told(played, roots, tell), roots, seed)
    restore, restore_s = restore_figures(make, drawn.states, clock=clock)
    tell("restores", roots, roots)

    timed = TimedOracle(oracle(), clock, decision_s)
    longest = max(len(walk.history) for walk, _ in drawn.states)
    starts = first_states(make, seed, from_reset, longest)
    with BranchRunner(lambda: cast(Oracle[Any], timed), make) as runner:
        wins = _branches(runner, starts, "tasks", tell, timed)
        timed.clear()
        states = drawn.states
        roots_of = [walk.request(t) for walk, t in states]
        branches = _branches(runner, roots_of, "branches", tell, timed)
    probes = tuple(
        Probe(walk, t, branch, walk.rest(t))
        for branch, (walk, t) in zip(branches, states, strict=True)
    )
    repeated = repeats_alike(
        probes, lambda: cast(Oracle[Any], TimedOracle(oracle(), clock, decision_s)), make
    )
    restore = with_branches(restore, probes)
    if restore.exact == restore.roots:  # else the restore is to blame for what comes out otherwise
        probes = carried_out(probes, make)
    return Measured(
        probes=probes,
        episodes=drawn.episodes,
        won=drawn.won,
        restore=restore,
        oracle=oracle_figures(probes, wins, timed, repeated),
        gate=gate_figures(
            probes,
            episodes=drawn.episodes,
            failed=drawn.episodes - drawn.won,
            target=target,
            return_scale=return_scale,
            seed=seed,
        ),
        cost=step_costs(branches, restore_s, timed.seconds),
        target=target,
        return_scale=return_scale,
        seed=seed,
        leaks=audit([probe.branch for probe in probes], branches[0].root.env_id),
    )


def _told(played: Iterator[Walk], roots: int, tell: Progress) -> Iterator[Walk]:
    failed = 0
    tell("failed episodes", failed, roots)
    for walk in played:
        failed += not walk.success
        tell("failed episodes", failed, roots)
        yield walk


def _branches(
    runner: BranchRunner,
    requests: list[BranchRequest],
    what: str,
    tell: Progress,
    timed: TimedOracle,
) -> list[Branch]:
    found = []
    for done, request in enumerate(requests, start=1):
        found += runner.run([request])
        if timed.missing is not None:
            raise timed.missing  # says nothing of the oracle
        tell(what, done, len(requests))
    return found


def _check(roots: int, seed: int, target: str, from_reset: int) -> None:
    for name, value, least in (
        ("roots", roots, 1),
        ("seed", seed, 0),
        ("from_reset", from_reset, 0),
    ):
        if type(value) is not int or value < least:
            raise InvalidOption(f"{name} is an int of at least {least}, not {value!r}.")
    if target not in TARGETS:
        raise InvalidOption(f"target is one of {', '.join(TARGETS)}, not {target!r}.")


def _positive(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise InvalidOption(f"{name} is a finite number above 0, not {value!r}.")


def _silent(what: str, done: int, of: int) -> None:
    pass
