"""The numbers of a base objective over turns made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tests.trainer import small
from tests.trainer.hand_turns import Hand, token_rows
from trainer.config import Config
from trainer.learning.base_advantages import (
    BaseAdvantages,
    base_advantages,
)
from trainer.objectives import grpo_advantages
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.graphgpo import graphgpo_advantages
from trainer.objectives.hgpo import hgpo_advantages
from trainer.objectives.reinforce_pp import (
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages
from trainer.rollouts.data import (
    Segment,
    Turn,
    segments_from_turns,
)

CRITICS = ("ppo", "ppo_trajectory", "turn_gae")
GROUPED = ("grpo", "dr_grpo", "dapo", "gspo", "rloo", "reinforce_pp_baseline", "gigpo", "hgpo",
           "graphgpo")  # fmt: skip
EVERY = (*GROUPED, "reinforce_pp", *CRITICS)


def config_of(name: str, **changes: Any) -> Config:
    return small.small_config(objective__name=name, **changes)


def advantages_of(
    config: Config,
    turns: Sequence[Turn],
    values: Sequence[Tensor] | None = None,
    reference: Sequence[Tensor] | None = None,
    segments: Sequence[Segment] | None = None,
) -> BaseAdvantages:
    rows = segments_from_turns(turns) if segments is None else segments
    return base_advantages(
        turns, rows, config.objective, config.rollout, values=values, reference=reference
    )


def values_for(config: Config, made: Hand) -> list[Tensor] | None:
    return token_rows(made, 1, 5.0) if config.objective.has_critic else None


PerTurn = Callable[[Hand], Tensor]
CASES: list[tuple[str, dict[str, Any], PerTurn]] = [
    ("grpo", {}, lambda h: grpo_advantages(*h.rows)),
    ("grpo", {"flavor": "code"}, lambda h: grpo_advantages(*h.rows, flavor="code")),
    ("grpo", {"flavor": "code_traj"}, lambda h: grpo_advantages(*h.rows, flavor="code_traj")),
    ("grpo", {"use_std": False}, lambda h: grpo_advantages(*h.rows, use_std=False)),
    ("dr_grpo", {}, lambda h: grpo_advantages(*h.rows, use_std=False)),
    ("dapo", {}, lambda h: grpo_advantages(*h.rows)),
    ("gspo", {}, lambda h: grpo_advantages(*h.rows)),
    ("rloo", {}, lambda h: rloo_advantages(*h.rows)),
    ("rloo", {"flavor": "code"}, lambda h: rloo_advantages(*h.rows, flavor="code")),
    ("reinforce_pp_baseline", {},
     lambda h: reinforce_pp_baseline_advantages(*h.rows[:4], h.tokens, h.t)),
    ("reinforce_pp_baseline", {"flavor": "code_traj"},
     lambda h: reinforce_pp_baseline_advantages(*h.rows[:4], h.tokens, h.t, flavor="code_traj")),
    ("gigpo", {}, lambda h: gigpo_advantages(*h.rows, h.anchor)),
    ("gigpo",
     {"flavor": "code", "use_std": False, "anchors.gamma": 0.5, "anchors.weight": 2.0},
     lambda h: gigpo_advantages(
         *h.rows, h.anchor, flavor="code", mode="mean_norm", gamma=0.5, omega=2.0)),
    ("hgpo", {}, lambda h: hgpo_advantages(*h.rows, h.anchor)),
    ("hgpo", {"anchors.depth": 0}, lambda h: hgpo_advantages(*h.rows, h.anchor, depth=0)),
    ("hgpo",
     {"flavor": "code", "use_std": False, "anchors.depth": 1, "anchors.alpha": 2.0,
      "anchors.base_group": True, "anchors.gamma": 0.5},
     lambda h: hgpo_advantages(
         *h.rows, h.anchor, flavor="code", mode="mean_norm", depth=1, alpha=2.0, base_group=True,
         gamma=0.5)),
    ("graphgpo", {}, lambda h: graphgpo_advantages(*h.rows, h.anchor, h.after, h.success)),
    ("graphgpo",
     {"flavor": "code", "use_std": False, "graph.omega": 0.5, "graph.step_weight": 2.0,
      "graph.episode_weight": 0.5, "graph.normalize_distance": True},
     lambda h: graphgpo_advantages(
         *h.rows, h.anchor, h.after, h.success, flavor="code", mode="mean_norm", omega=0.5,
         w_step=2.0, w_ep=0.5, normalize_distance=True)),
]  # fmt: skip
