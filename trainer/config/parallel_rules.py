"""What a run in many processes cannot do yet, each with its reason. Pure.

Base objectives by where their statistics come from:

- of a group, and whole groups stay on one rank: grpo, dr_grpo, dapo, gspo, rloo, gigpo, hgpo,
  graphgpo. Nothing has to be exchanged.
- of a trajectory and a critic: ppo_trajectory, turn_gae. Nothing but the critic is shared
  (`trainer.parallel.critic`).
- of the whole batch: reinforce_pp, reinforce_pp_baseline, ppo (`WHITENED`). Ranks exchange what
  they are computed from (`trainer.parallel.advantages`), and each computes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = ["WHITENED", "unsupported"]

WHITENED = frozenset({"reinforce_pp", "reinforce_pp_baseline", "ppo"})


def unsupported(config: Config) -> list[str]:
    """One sentence or two for each setting that `parallel.mode` excludes."""
    mode = config.parallel.mode
    if mode == "none":
        return []
    found = []
    for name, section in config.auxiliary.active():
        for field, value, reason, way_out in _OF_ALL_GROUPS:
            if getattr(section, field, None) == value and _counts(name, section, field):
                found.append(
                    f"parallel.mode={mode} refuses auxiliary.{name}.{field}={value}: {reason}. "
                    f"{way_out}"
                )
    if mode == "fsdp" and config.optim.optimizer == "adamw_8bit":
        found.append(
            "parallel.mode=fsdp refuses optim.optimizer=adamw_8bit: its moments are blocks that "
            "cross the edges of shards. Use adamw, adafactor or sgd."
        )
    return found


_OF_ALL_GROUPS = (
    (
        "gate_center",
        "mean",
        "the mean gate is one of the tokens of all processes",
        "Use none or half.",
    ),
    (
        "retrieval",
        "ucb",
        "what is chosen next depends on the outcomes of all processes",
        "Use keyword, full or random.",
    ),
    (
        "shuffle",
        "train",
        "whose skill a trajectory gets depends on the trajectories of all processes",
        "Use off or measure.",
    ),
    (
        "source",
        "teacher",
        "which draws the teacher's episodes are made of depends on the groups of all processes",
        "Use oracle or success.",
    ),
)
"""(field, value, reason, way out) of auxiliary sections."""


def _counts(name: str, section: Any, field: str) -> bool:
    """Whether the setting is the one that is meant: names of fields recur."""
    return field != "source" or (name == "gkd" and section.fraction < 1)
