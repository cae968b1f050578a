"""DAPO's dynamic sampling: rounds of rollouts until enough groups teach something.

A group whose trajectories were all paid the same teaches nothing. With `objective.dynamic_rounds`
another round of `rollout.tasks` groups is collected while groups of different outcomes are missing,
so many rounds at most (arXiv:2503.14476; `trainer.objectives.dapo`). Outcomes are what the
environment paid: penalties for format and length make no group interesting.

Tasks come from the run's schedule, one place for every group drawn, so the place of an iteration
is the number of groups drawn before it; that number is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.config import Config
from trainer.learning.batch import group_ids, training_rewards
from trainer.metrics import mean_or_none
from trainer.objectives.dapo import SamplingPlan, informative_groups, plan_sampling
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Trajectory

__all__ = ["Collected", "collect_rounds", "informative"]

PlayRound = Callable[[int], Sequence[Trajectory]]


@dataclass(frozen=True, slots=True)
class Collected:
    """Rollouts of one iteration.

    Attributes:
        sampled: all trajectories. What a run reports about its policy is measured on these: those
            that are kept were chosen by their outcome.
        kept: those to train on, whole groups in the order of sampling.
        groups: number of groups sampled.
        metrics: figures of the sampling; empty where there are no rounds.
    """

    sampled: Sequence[Trajectory]
    kept: Sequence[Trajectory]
    groups: int
    metrics: Mapping[str, Any]


def collect_rounds(config: Config, play_round: PlayRound) -> Collected:
    """One iteration's rollouts, in one round or in as many as are needed.

    Flavor `paper` keeps the first `rollout.tasks` groups of different outcomes; where the last
    round leaves too few, the iteration trains on fewer, down to none. The flavours of public code
    keep all of them, and the whole of a last round.

    Args:
        play_round: plays `rollout.tasks` groups, given the number of the round, from 0; the
            groups of every round have ids of their own.
    """
    objective, wanted = config.objective, config.rollout.tasks
    if not objective.dynamic_rounds:
        played = list(play_round(0))
        return Collected(played, played, wanted, {})
    flavor: Literal["paper", "code"] = "paper" if objective.flavor == "paper" else "code"
    sampled: list[Trajectory] = []
    rounds: list[Mapping[str, bool]] = []
    while True:
        played = list(play_round(len(rounds)))
        sampled += played
        rounds.append(informative(played, config))
        plan = plan_sampling(rounds, wanted, max_rounds=objective.dynamic_rounds, flavor=flavor)
        if plan.status != "again":
            break
    chosen = set(plan.groups)
    kept = [trajectory for trajectory in sampled if trajectory.episode.uid in chosen]
    return Collected(sampled, kept, plan.sampled, _metrics(plan, len(rounds), kept))


def informative(trajectories: Sequence[Trajectory], config: Config) -> dict[str, bool]:
    """Of each group, in order: were its trajectories paid differently?

    Groups that ended before their first turn are not: they have nothing to train on.
    """
    turns: list[Turn] = [turn for trajectory in trajectories for turn in trajectory.turns]
    rollout = config.rollout
    rewards_M = training_rewards(turns, rollout.success_reward, rollout.reward)
    uid_M, tid_M = group_ids(turns)
    uid_G, keep_G = informative_groups(rewards_M, uid_M, tid_M)
    differ = set(uid_G[keep_G].tolist())
    found = {t.uid for t, number in zip(turns, uid_M.tolist(), strict=True) if number in differ}
    return {t.episode.uid: t.episode.uid in found for t in trajectories}


def _metrics(
    plan: SamplingPlan[str], rounds: int, kept: Sequence[Trajectory]
) -> dict[str, float | int | None]:
    """What the sampling took.

    - rounds, groups_sampled; groups_informative of them, groups_kept to train on.
    - kept_share: groups_kept / groups_sampled.
    - missing: groups of different outcomes that the last round still left to be found.
    - kept_success_rate: of the kept trajectories, to set beside `success_rate`, which is of all.
    """
    return {
        "dynamic/rounds": rounds,
        "dynamic/groups_sampled": plan.sampled,
        "dynamic/groups_informative": plan.informative,
        "dynamic/groups_kept": len(plan.groups),
        "dynamic/kept_share": len(plan.groups) / plan.sampled,
        "dynamic/missing": plan.missing,
        "dynamic/kept_success_rate": mean_or_none(float(t.success) for t in kept),
    }
