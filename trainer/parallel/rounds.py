"""Rounds of sampling (`objective.dynamic_rounds`) in many processes.

Each rank plays its groups of every round. Which groups differ in their outcomes is exchanged after
each round, so all ranks make one plan: the same number of rounds, and the same groups to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from trainer.config import Config
from trainer.objectives.dapo import plan_sampling
from trainer.parallel.context import Group
from trainer.parallel.counts import shared_mean
from trainer.parallel.moving import deal_out
from trainer.rollouts.dynamic_sampling import Collected, informative
from trainer.rollouts.rollout import Trajectory

__all__ = ["collect_shared_rounds"]


def collect_shared_rounds(
    config: Config, play_round: Callable[[int], Sequence[Trajectory]], group: Group
) -> Collected:
    """`trainer.rollouts.dynamic_sampling.collect_rounds` over all ranks.

    Args:
        play_round: plays this rank's groups of a round; may be none.

    Returns:
        `sampled` are those that this rank played, `kept` its part of all that are kept, and
        `groups` counts those of all ranks.
    """
    objective, wanted = config.objective, config.rollout.tasks
    flavor: Literal["paper", "code"] = "paper" if objective.flavor == "paper" else "code"
    sampled: list[Trajectory] = []
    rounds: list[Mapping[str, bool]] = []
    while True:
        played = list(play_round(len(rounds)))
        sampled += played
        mine = informative(played, config) if played else {}
        rounds.append({uid: on for part in group.gather(mine) for uid, on in part.items()})
        plan = plan_sampling(rounds, wanted, max_rounds=objective.dynamic_rounds, flavor=flavor)
        if plan.status != "again":
            break
    kept = deal_out(sampled, plan.groups, group)
    return Collected(
        sampled,
        kept,
        plan.sampled,
        {
            "dynamic/rounds": len(rounds),
            "dynamic/groups_sampled": plan.sampled,
            "dynamic/groups_informative": plan.informative,
            "dynamic/groups_kept": len(plan.groups),
            "dynamic/kept_share": len(plan.groups) / plan.sampled,
            "dynamic/missing": plan.missing,
            "dynamic/kept_success_rate": shared_mean([float(t.success) for t in kept], group),
        },
    )
