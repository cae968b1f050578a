"""What a run in many processes cannot do yet, each with its reason. Pure.

Base objectives by where their statistics come from:

- of a group, and whole groups stay on one rank: grpo, dr_grpo, dapo, gspo, rloo, gigpo, hgpo,
  graphgpo. Nothing has to be exchanged.
- of the whole batch: reinforce_pp, reinforce_pp_baseline (`WHITENED`). Ranks exchange what they
  are computed from (`trainer.parallel.advantages`), and each computes all of them.
- of the whole batch and a critic: ppo, ppo_trajectory, turn_gae. Refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = ["METHODS", "WHITENED", "unsupported"]

WHITENED = frozenset({"reinforce_pp", "reinforce_pp_baseline"})
METHODS = ("sero", "format_only")
"""Auxiliary objectives whose counts are added up over ranks."""

_PLAIN_MOMENTS = ("adamw", "sgd")


def unsupported(config: Config) -> list[str]:
    """One sentence or two for each setting that `parallel.mode` excludes."""
    mode = config.parallel.mode
    if mode == "none":
        return []
    found = []
    if config.objective.has_critic:
        found.append(
            f"parallel.mode={mode} refuses objective.name={config.objective.name}: the critic is "
            "not shared between processes. Use an objective without a critic, or one process."
        )
    if config.objective.dynamic_rounds:
        found.append(
            f"parallel.mode={mode} refuses objective.dynamic_rounds="
            f"{config.objective.dynamic_rounds}: whether there is another round depends on the "
            "groups of all processes. Set it to 0."
        )
    for name, section in config.auxiliary.active():
        if name not in METHODS:
            found.append(
                f"parallel.mode={mode} refuses auxiliary.{name}: its loss is divided by counts of "
                f"one process. Those that are shared: {', '.join(METHODS)}."
            )
        elif name == "sero" and section.rule == "depth" and section.delta == "matched":
            found.append(
                f"parallel.mode={mode} refuses auxiliary.sero.delta=matched: it is fitted to the "
                "branches of all processes. Give a number."
            )
    if mode == "fsdp":
        if config.optim.optimizer not in _PLAIN_MOMENTS:
            found.append(
                f"parallel.mode=fsdp refuses optim.optimizer={config.optim.optimizer}: its "
                f"moments are not one number a weight. Use {' or '.join(_PLAIN_MOMENTS)}."
            )
        if config.lora.rank:
            found.append(
                f"parallel.mode=fsdp refuses lora.rank={config.lora.rank}: adapters are small "
                "enough for a replica. Use parallel.mode: ddp."
            )
    return found
