"""What the oracle's branches cost, as a share of an iteration of training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent_envs.errors import InvalidOption
from oracles.bench.figures import GROUPS, IterationCosts, Overhead, StepCosts
from oracles.branch import Branch

__all__ = ["overhead", "step_costs"]


def step_costs(branches: Sequence[Branch], restore_s: float, oracle_s: float) -> StepCosts:
    """Means for one root; at least one branch.

    Args:
        restore_s: mean seconds for one restore.
        oracle_s: seconds in the oracle for all branches together.
    """
    n = len(branches)
    return StepCosts(
        restore_s=restore_s,
        oracle_s=oracle_s / n,
        env_s=math.fsum(branch.env_s for branch in branches) / n,
        branch_steps=sum(len(branch.steps) for branch in branches) / n,
    )


def overhead(costs: StepCosts, iteration: IterationCosts) -> Overhead:
    """The cost of `GROUPS` roots, one a group, whatever the number that was measured.

    share = (GROUPS * (restore_s + oracle_s + env_s) + model_s) / iteration_s

    Raises:
        InvalidOption: a time that is no finite number, is negative, or 0 for the iteration.
    """
    seconds = iteration.iteration_s
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidOption(f"iteration_s is a number of seconds above 0, not {seconds!r}.")
    named = {
        "restore_s": costs.restore_s,
        "oracle_s": costs.oracle_s,
        "env_s": costs.env_s,
        "model_s": 0.0 if iteration.model_s is None else iteration.model_s,
    }
    for name, value in named.items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidOption(f"{name} is a number of seconds, 0 or more, not {value!r}.")
    restore, oracle, env = (GROUPS * named[n] / seconds for n in ("restore_s", "oracle_s", "env_s"))
    model = None if iteration.model_s is None else iteration.model_s / seconds
    return Overhead(
        iteration_s=seconds,
        source=iteration.source,
        restore_share=restore,
        oracle_share=oracle,
        env_share=env,
        token_share=iteration.token_share,
        model_share=model,
        overhead_share=restore + oracle + env + (model or 0.0),
    )
