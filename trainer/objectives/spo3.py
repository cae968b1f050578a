"""3SPO: how much a state still teaches, and the step reward made from it.

Source: 3SPO (arXiv:2606.09961), section 7 of the specification of base objectives and the released
code. A state that succeeds often, or one that fails hopelessly, scores near 0; the number of
rollouts from a state and the reward of a step follow from the score.

What the released code does not do: its backtracking search is never called, the class that would
call it is swapped in the driver process only, and the scripts select plain GRPO. Results published
with those scripts are therefore GRPO's, and these functions follow the stated formulas. Its clock t
also moves by one for each trajectory while it runs but starts at (counted visits + 1) when the
counts are loaded; here t is always the latter.

A step: `total_S, success_S = counts.of(keys)`, then `score_S = spo3_score(total_S, success_S,
counts.t)`, then `spo3_reward(score_S[state_M], score_S[next_state_M], total_S[state_M],
state_M != next_state_M, success_reward_M)`, then `counts = counts.with_batch(...)`.

Axis letters: M turns (rows), N trajectories, S states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.objectives.groups import check_vectors


@dataclass(frozen=True, slots=True)
class VisitCounts:
    """In how many trajectories each state was met, and how many of those won.

    Counts are shared by all tasks and kept over the whole training. The fields are tuples of
    plain values: `dataclasses.asdict` makes JSON of them and `VisitCounts(**fields)` reads it.

    Attributes:
        keys: the states, each once, in the order in which they were first counted.
        total: trajectories that met the state, at least 1.
        success: those among them that won.

    Raises:
        ValueError: lengths differ, a key occurs twice, or success is not within 0..total.
    """

    keys: tuple[str, ...] = ()
    total: tuple[int, ...] = ()
    success: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("keys", "total", "success"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))
        sizes = (len(self.keys), len(self.total), len(self.success))
        if len(set(sizes)) > 1:
            raise ValueError(f"Expected keys, total and success of one length, found {sizes}.")
        if len(set(self.keys)) < len(self.keys):
            raise ValueError("A state key occurs twice; give each state once.")
        for key, total, success in zip(self.keys, self.total, self.success, strict=True):
            if not (0 <= success <= total and total >= 1):
                raise ValueError(
                    f"State {key!r} has {success} successes in {total} trajectories; expected "
                    "0 <= success <= total and total >= 1."
                )

    @property
    def t(self) -> int:
        """The clock of the score: all counted visits, plus 1."""
        return sum(self.total) + 1

    def of(self, keys: Sequence[str]) -> tuple[Tensor, Tensor]:
        """`(total_S, success_S)`, int64, of the given states; 0 for a state never met."""
        places = {key: place for place, key in enumerate(self.keys)}
        found = [places.get(key) for key in keys]
        total = [0 if place is None else self.total[place] for place in found]
        success = [0 if place is None else self.success[place] for place in found]
        return torch.tensor(total, dtype=torch.int64), torch.tensor(success, dtype=torch.int64)

    def with_batch(
        self, keys: Sequence[str], state_M: Tensor, tid_M: Tensor, success_M: Tensor
    ) -> VisitCounts:
        """The counts after one more batch; this value stays as it is.

        A trajectory counts once for each distinct state among its turns, however often it came
        back. The state after its last turn is not among them.

        Args:
            keys: key of each state id; ids of one key would count its trajectories twice, so
                each key comes once (as `dense_ids` numbers them).
            state_M: int64 (M,), state id of each turn, an index into `keys`.
            tid_M: int64 (M,), trajectory id, unique over the batch.
            success_M: bool (M,), whether the turn's trajectory won; equal on all of its turns.

        Returns:
            VisitCounts.

        Raises:
            ValueError: shapes differ, a key comes twice, a state id is no index into `keys`, or a
                trajectory both won and lost.
        """
        check_vectors(state_M=state_M, tid_M=tid_M, success_M=success_M)
        if len(set(keys)) < len(keys):
            raise ValueError("A state key occurs twice in keys; number equal states equally.")
        if state_M.numel() and not 0 <= int(state_M.min()) <= int(state_M.max()) < len(keys):
            raise ValueError(
                f"State ids run from {int(state_M.min())} to {int(state_M.max())}, but there are "
                f"{len(keys)} keys."
            )
        trajectory_M = torch.unique(tid_M, return_inverse=True)[1]
        outcomes = torch.unique(torch.stack([trajectory_M, success_M.to(torch.int64)]), dim=1)
        if outcomes.shape[1] > torch.unique(trajectory_M).numel():
            raise ValueError("success_M differs between turns of one trajectory.")
        won_N = outcomes[1]  # the columns are sorted by trajectory
        trajectory, state = torch.unique(torch.stack([trajectory_M, state_M]), dim=1)
        visits = torch.bincount(state, minlength=len(keys)).tolist()
        wins = torch.bincount(state[won_N[trajectory] == 1], minlength=len(keys)).tolist()

        total = dict(zip(self.keys, self.total, strict=True))
        success = dict(zip(self.keys, self.success, strict=True))
        for key, more, more_won in zip(keys, visits, wins, strict=True):
            if more:
                total[key] = total.get(key, 0) + more
                success[key] = success.get(key, 0) + more_won
        return VisitCounts(tuple(total), tuple(total.values()), tuple(success.values()))


def spo3_score(
    total_S: Tensor,
    success_S: Tensor,
    t: int,
    *,
    alpha: float = 50.0,
    xi: int = 10,
    zeta: float = 0.1,
    eps: float = 1e-6,
) -> Tensor:
    """Score of each state: how much there is left to learn in it.

        p    = N_succ / (N_tot + eps)
        S(s) = exp(-alpha * ln(t) * p) * [N_tot - N_succ < xi or p > zeta]
        S(s) = 1                                      for a state never met

    With the published alpha the score is nearly binary: at t = 50 a success rate of 0.17 gives
    7e-15.

    Args:
        total_S: int64 (S,), trajectories that met the state.
        success_S: int64 (S,), those among them that won.
        t: clock, at least 1; `VisitCounts.t`.
        alpha: sharpness.
        xi: failures from which on a state counts as hopeless ...
        zeta: ... unless its success rate exceeds this.
        eps: added to N_tot in the rate.

    Returns:
        float64 (S,), in [0, 1].

    Raises:
        ValueError: shapes differ, t is below 1, or successes are not within 0..N_tot.
    """
    check_vectors(total_S=total_S, success_S=success_S)
    if t < 1:
        raise ValueError(f"t counts visits from 1 on, found {t}.")
    if bool(((success_S < 0) | (success_S > total_S)).any()):
        raise ValueError("success_S must lie between 0 and total_S.")
    rate = success_S.double() / (total_S.double() + eps)
    worth = (total_S - success_S < xi) | (rate > zeta)
    score = torch.exp(-alpha * math.log(t) * rate).masked_fill(~worth, 0.0)
    return score.masked_fill(total_S == 0, 1.0)


def spo3_rollouts(score_S: Tensor, *, g_max: int = 8) -> Tensor:
    """Rollouts to start from each state: n = ceil(g_max * S).

    0 cuts the trajectory, 1 goes on without an update, more form a local group.

    Args:
        score_S: float (S,), from `spo3_score`.
        g_max: rollouts from a state with score 1.

    Returns:
        int64 (S,).
    """
    return torch.ceil(g_max * score_S.detach().double()).to(torch.int64)


def spo3_reward(
    score_M: Tensor,
    next_score_M: Tensor,
    total_M: Tensor,
    changed_M: Tensor,
    success_reward_M: Tensor,
    *,
    omega_k: float = 0.1,
) -> Tensor:
    """Reward of each step s -> s'.

        r = w * [s' != s] + (1/2 - w) * (S(s) - S(s')) + 1/2 * r_succ
        w = 1/2 * exp(-omega_k * N_tot(s))

    New states are paid for leaving them, well-known ones for moving on to a lower score.

    Args:
        score_M, next_score_M: float (M,), S(s) and S(s').
        total_M: int64 (M,), N_tot(s).
        changed_M: bool (M,), whether s' differs from s.
        success_reward_M: float (M,), r_succ: the success reward of the step, 0 without one.
        omega_k: decay of w with the visits.

    Returns:
        float64 (M,), detached.

    Raises:
        ValueError: shapes differ, or a score or reward is not finite.
    """
    check_vectors(
        score_M=score_M,
        next_score_M=next_score_M,
        total_M=total_M,
        changed_M=changed_M,
        success_reward_M=success_reward_M,
    )
    names = ("score_M", "next_score_M", "success_reward_M")
    for name, values in zip(names, (score_M, next_score_M, success_reward_M), strict=True):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} has a NaN or infinite entry.")
    weight = 0.5 * torch.exp(-omega_k * total_M.double())
    progress = score_M.detach().double() - next_score_M.detach().double()
    novelty = changed_M.bool().double()
    return weight * novelty + (0.5 - weight) * progress + 0.5 * success_reward_M.detach().double()
