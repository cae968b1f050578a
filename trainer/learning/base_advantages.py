"""The base objective's advantages, from recorded turns. Pure: turns and log-probs in, numbers out.

Every objective of `trainer.objectives` behind one function. The advantage of a turn, or of each of
its tokens, comes out as one number a trained token, so that losses need not know which it was.

Axis letters: M turns, T tokens, R trained tokens of one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from trainer.config import ObjectiveConfig, RolloutConfig
from trainer.learning.batch import constant_groups, group_ids, training_rewards
from trainer.models.policy import pad_rows
from trainer.objectives import check_groups, dense_ids, grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.dapo import overlong_penalty
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.graphgpo import graphgpo_advantages
from trainer.objectives.hgpo import hgpo_advantages
from trainer.objectives.kl_reward import kl_token_rewards
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages
from trainer.rollouts.data import CUT_OFF, Segment, Turn

__all__ = ["BaseAdvantages", "base_advantages", "state_keys", "turn_advantages"]

TERMINAL = "terminal"

State = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BaseAdvantages:
    """Advantages of an iteration.

    Attributes:
        tokens: float64 (R,) for each turn.
        targets: what the critic should have said at the same tokens; None without a critic.
        target_mask: at which of them it is trained; None without a critic.
        kl: mean over trained tokens of the KL estimate that the rewards paid for, before its
            coefficient; None where the KL is not in the rewards, or there is no token.
    """

    tokens: list[Tensor]
    targets: list[Tensor] | None = None
    target_mask: list[Tensor] | None = None
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Turns as the pure functions want them, all (M,)."""

    turns: Sequence[Turn]
    rewards: Tensor
    format_valid: Tensor
    uid: Tensor
    tid: Tensor
    t: Tensor

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.rewards, self.format_valid, self.uid, self.tid, self.t


def base_advantages(
    turns: Sequence[Turn],
    segments: Sequence[Segment],
    objective: ObjectiveConfig,
    rollout: RolloutConfig,
    *,
    values: Sequence[Tensor] | None = None,
    reference: Sequence[Tensor] | None = None,
) -> BaseAdvantages:
    """Advantages under the base objective of the config.

    Args:
        turns: M turns of whole trajectories, in any order of trajectories.
        segments: one a turn; their trained tokens are what advantages are for.
        values: (R,) the critic's values before each trained token, where there is a critic.
        reference: (R,) log-probs of the reference policy, where the KL is in the reward.

    Raises:
        GroupError: no two trajectories share a group, and the objective needs groups.
        ValueError: values or reference are missing where they are needed.
    """
    sizes = [segment.trained for segment in segments]
    if objective.name == "none":
        return BaseAdvantages([torch.zeros(size, dtype=torch.float64) for size in sizes])
    batch = _batch(turns, objective, rollout)
    if objective.needs_groups:
        check_groups(batch.uid, batch.tid)
    mask_M_T = pad_rows([[1] * size for size in sizes], torch.bool)
    kl_M_T = None
    if objective.kl_placement == "reward" and objective.kl_coef > 0:
        if reference is None:
            raise ValueError("The KL in the reward needs the reference's log-probs; found none.")
        kl_M_T = _kl_rewards(segments, reference, mask_M_T, objective)
    found = None
    if objective.has_critic:
        if values is None:
            raise ValueError(f"objective.name={objective.name} needs the critic's values.")
        found = _with_critic(batch, _padded(values), mask_M_T, kl_M_T, objective, rollout)
    elif objective.name == "reinforce_pp":
        adv_M_T, _ = reinforce_pp_advantages(
            batch.rewards,
            batch.format_valid,
            batch.tid,
            mask_M_T,
            penalty=rollout.format_penalty,
            kl_M_T=None if kl_M_T is None else -kl_M_T,
            kl_coef=0.0 if kl_M_T is None else 1.0,
        )
        found = BaseAdvantages(_ragged(adv_M_T, sizes))
    if found is None:
        adv_M = turn_advantages(turns, objective, rollout, kl_M_T=kl_M_T, sizes=sizes)
        found = BaseAdvantages([adv_M[m].expand(size) for m, size in enumerate(sizes)])
    tokens = sum(sizes)
    if kl_M_T is None or not tokens:
        return found
    return replace(found, kl=-float(kl_M_T.sum()) / (objective.kl_coef * tokens))


def turn_advantages(
    turns: Sequence[Turn],
    objective: ObjectiveConfig,
    rollout: RolloutConfig,
    *,
    kl_M_T: Tensor | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """float64 (M,): the advantage of each turn, under an objective with one number a turn.

    Args:
        kl_M_T: (M, T) rewards to add, summed over a turn; None: none.
        sizes: trained tokens of each turn; None: the tokens of its reply.

    Raises:
        ValueError: the objective has a number for each token.
    """
    if objective.name not in _PER_TURN:
        raise ValueError(
            f"objective.name={objective.name} has no advantage of a turn, only of its tokens; "
            "call base_advantages."
        )
    batch = _batch(turns, objective, rollout)
    if kl_M_T is not None:
        batch = replace(batch, rewards=batch.rewards + kl_M_T.sum(dim=-1))
    adv_M = _PER_TURN[objective.name](batch, objective, rollout, sizes)
    if objective.drop_constant_groups:
        constant = constant_groups(turns, rollout.reward)
        adv_M = adv_M.masked_fill(_flags(turn.uid in constant for turn in turns), 0.0)
    return adv_M


def state_keys(turns: Sequence[Turn]) -> tuple[list[State], list[State]]:
    """GraphGPO's state before and after each turn: what was shown, and what could be done.

    Published keys of ALFWorld also hold what its authors track of the world (place, held object,
    what was moved); the admissible commands say as much. A trajectory that was cut off ended in a
    state like any other. One that the environment ended is in a state that nothing leaves.
    """
    before = [_state(turn.observation, turn.admissible) for turn in turns]
    place = {(turn.uid, turn.tid, turn.t): key for turn, key in zip(turns, before, strict=True)}
    after = []
    for turn in turns:
        key = place.get((turn.uid, turn.tid, turn.t + 1))
        if key is None and turn.stop_reason in CUT_OFF:
            key = _state(turn.next_observation, turn.next_admissible)
        after.append((TERMINAL, turn.next_observation) if key is None else key)
    return before, after


def _state(observation: str, admissible: Sequence[str]) -> State:
    return (observation, *sorted(admissible))


def _batch(turns: Sequence[Turn], objective: ObjectiveConfig, rollout: RolloutConfig) -> _Batch:
    uid_M, tid_M = group_ids(turns)
    rewards_M = training_rewards(turns, rollout.success_reward, rollout.reward)
    if objective.overlong_buffer is not None:
        tokens_M = torch.tensor([len(turn.response_ids) for turn in turns], dtype=torch.int64)
        rewards_M = rewards_M + overlong_penalty(
            tokens_M,
            max_len=rollout.max_new_tokens,
            buffer=objective.overlong_buffer,
            factor=objective.overlong_factor,
        )
    return _Batch(
        turns,
        rewards_M,
        _flags(turn.format_valid for turn in turns),
        uid_M,
        tid_M,
        torch.tensor([turn.t for turn in turns], dtype=torch.int64),
    )


PerTurn = Callable[[_Batch, ObjectiveConfig, RolloutConfig, Sequence[int] | None], Tensor]


def _mode(objective: ObjectiveConfig) -> Literal["mean_std_norm", "mean_norm"]:
    return "mean_std_norm" if objective.use_std else "mean_norm"


def _grpo(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    return grpo_advantages(
        *batch.rows, flavor=o.flavor, use_std=o.use_std, penalty=r.format_penalty
    )


def _rloo(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    return rloo_advantages(*batch.rows, flavor=o.flavor, penalty=r.format_penalty)


def _reinforce_pp_baseline(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    counts = [len(turn.response_ids) for turn in batch.turns] if sizes is None else sizes
    return reinforce_pp_baseline_advantages(
        *batch.rows[:4],
        torch.tensor(counts, dtype=torch.int64),
        batch.t,
        flavor=o.flavor,
        penalty=r.format_penalty,
    )


def _anchors(batch: _Batch, o: ObjectiveConfig) -> Tensor:
    keys = [turn.anchor for turn in batch.turns]
    return anchor_ids(keys, batch.uid, similarity=o.anchors.similarity)


def _gigpo(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    return gigpo_advantages(
        *batch.rows,
        _anchors(batch, o),
        flavor=o.flavor,
        mode=_mode(o),
        omega=o.anchors.weight,
        gamma=o.anchors.gamma,
        penalty=r.format_penalty,
    )


def _hgpo(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    return hgpo_advantages(
        *batch.rows,
        _anchors(batch, o),
        flavor=o.flavor,
        mode=_mode(o),
        depth=o.anchors.depth,
        alpha=o.anchors.alpha,
        base_group=o.anchors.base_group,
        gamma=o.anchors.gamma,
        penalty=r.format_penalty,
    )


def _graphgpo(
    batch: _Batch, o: ObjectiveConfig, r: RolloutConfig, sizes: Sequence[int] | None
) -> Tensor:
    before, after = state_keys(batch.turns)
    states = dense_ids([*before, *after])
    count = len(before)
    won = {(turn.uid, turn.tid) for turn in batch.turns if turn.done and turn.success}
    texts = None
    if o.graph.similarity is not None:
        known = dict(zip(states.tolist(), [*before, *after], strict=True))
        texts = ["\n".join(known[i]) for i in range(len(known))]
    return graphgpo_advantages(
        *batch.rows,
        states[:count],
        states[count:],
        _flags((turn.uid, turn.tid) in won for turn in batch.turns),
        flavor=o.flavor,
        mode=_mode(o),
        omega=o.graph.omega,
        success_reward=r.success_reward,
        w_step=o.graph.step_weight,
        w_ep=o.graph.episode_weight,
        normalize_distance=o.graph.normalize_distance,
        similarity=o.graph.similarity,
        texts=texts,
        penalty=r.format_penalty,
    )


_PER_TURN: dict[str, PerTurn] = {
    **dict.fromkeys(("grpo", "dr_grpo", "dapo", "gspo"), _grpo),
    "rloo": _rloo,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
    "graphgpo": _graphgpo,
}


def _kl_rewards(
    segments: Sequence[Segment],
    reference: Sequence[Tensor],
    mask_M_T: Tensor,
    objective: ObjectiveConfig,
) -> Tensor:
    """(M, T): minus the coefficient times the KL estimate under the behaviour policy."""
    behaviour = [
        [x for x, keep in zip(s.logprobs, s.loss_mask, strict=True) if keep] for s in segments
    ]
    return kl_token_rewards(
        torch.zeros(mask_M_T.shape, dtype=torch.float64),
        pad_rows(behaviour, torch.float64, width=mask_M_T.shape[1]),
        _padded(reference, mask_M_T.shape[1]),
        mask_M_T,
        coef=objective.kl_coef,
        kind=objective.kl_kind,
    )


def _with_critic(
    batch: _Batch,
    value_M_T: Tensor,
    mask_M_T: Tensor,
    kl_M_T: Tensor | None,
    o: ObjectiveConfig,
    r: RolloutConfig,
) -> BaseAdvantages:
    sizes = mask_M_T.sum(dim=-1).tolist()
    given = {"gamma": o.critic.gamma, "lam": o.critic.lam}
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    options["penalty"] = r.format_penalty
    if o.name == "turn_gae":
        rewards = batch.rewards if kl_M_T is None else batch.rewards + kl_M_T.sum(dim=-1)
        # One value a turn: what the critic says before the first token.
        first_M = value_M_T[:, 0] if value_M_T.shape[1] else torch.zeros(len(sizes))
        result = turn_gae(rewards, batch.format_valid, batch.tid, first_M, batch.t, **options)
        pairs = list(zip(sizes, range(len(sizes)), strict=True))
        return BaseAdvantages(
            [result.advantages[m].expand(size) for size, m in pairs],
            [result.returns[m].expand(size) for size, m in pairs],
            [torch.arange(size) == 0 for size in sizes],
        )
    if o.name == "ppo":
        result = ppo_turnwise(
            batch.rewards, batch.format_valid, batch.tid, value_M_T, mask_M_T,
            token_rewards_M_T=kl_M_T, **options,
        )  # fmt: skip
    else:
        result = ppo_trajectory(
            batch.rewards, batch.format_valid, batch.tid, value_M_T, mask_M_T, batch.t,
            token_rewards_M_T=kl_M_T, **options,
        )  # fmt: skip
    return BaseAdvantages(
        _ragged(result.advantages, sizes),
        _ragged(result.returns, sizes),
        [torch.ones(size, dtype=torch.bool) for size in sizes],
    )


def _flags(values: Iterable[bool]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.bool)


def _padded(rows: Sequence[Tensor], width: int | None = None) -> Tensor:
    return pad_rows([row.tolist() for row in rows], torch.float64, width=width)


def _ragged(value_M_T: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [row[:size] for row, size in zip(value_M_T, sizes, strict=True)]
