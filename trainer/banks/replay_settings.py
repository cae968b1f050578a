"""How an oracle bank is replayed: what can be chosen, and what a choice makes of a run's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from trainer.config import AuxiliaryConfig, Config, ConfigError, ObjectiveConfig, SeroConfig

__all__ = ["RULES", "ReplaySettings", "configured", "section_of"]

RULES: Mapping[str, tuple[Literal["sero", "flat", "root", "depth"], bool]] = MappingProxyType(
    {
        "flat": ("flat", False),
        "root": ("root", False),
        "depth": ("depth", False),
        "depth-matched": ("depth", True),
        "sero": ("sero", False),
    }
)
"""By name: the rule of `SeroConfig`, and whether its decay is matched to the mass of `sero`."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a bank is replayed. None: as the run's config has it.

    Attributes:
        rules: names of `RULES`.
        delta: decay of rule `depth`, in [0, 1].
        z: `rescore` measures z before each iteration with the copy that is trained, as a run
            does; `stored` once, with the checkpoint that all copies start from.
        mode: `aux_only`, or `aux+rl`, where the base objective is trained on rollouts as well.
        iterations: of each copy; None: as many as take every branch once.
        roots: branches an iteration; None: as many as the run has groups.
        weight, lr, seed: override the run's.
        eval_tasks: held-out tasks a split, played before and after; 0: none.
        checkpoint: after how many iterations of the run; None: its last.
        save: keep the model of every copy.
    """

    rules: tuple[str, ...] = tuple(RULES)
    delta: float | None = None
    z: Literal["rescore", "stored"] = "rescore"
    mode: Literal["aux_only", "aux+rl"] = "aux_only"
    iterations: int | None = None
    roots: int | None = None
    weight: float | None = None
    lr: float | None = None
    seed: int | None = None
    eval_tasks: int = 20
    checkpoint: int | None = None
    save: bool = False

    def check(self) -> None:
        """Raises `ConfigError` on what is unknown or out of range."""
        unknown = [name for name in self.rules if name not in RULES]
        if unknown or not self.rules:
            raise ConfigError(f"rules: found {unknown or 'none'}, expected some of {list(RULES)}.")
        if len(set(self.rules)) < len(self.rules):
            raise ConfigError(f"rules: {', '.join(self.rules)} names one twice. Name it once.")
        for name, least in (("iterations", 1), ("roots", 1), ("seed", 0), ("eval_tasks", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value}: expected {least} or more.")
        if self.delta is not None and "depth" not in self.rules:
            raise ConfigError(f"delta={self.delta} is of rule depth, which is not among the rules.")


def configured(trained: Config, settings: ReplaySettings) -> tuple[Config, SeroConfig]:
    """The config of every copy, and SERO's section, overridden."""
    section = trained.auxiliary.sero or SeroConfig()
    if settings.weight is not None:
        section = replace(section, weight=settings.weight)
    if settings.z == "stored":
        section = replace(section, z_every="iteration")
    if section.weight == 0:
        raise ConfigError("weight=0 trains nothing. Give a weight above 0.")
    objective = trained.objective
    if settings.mode == "aux_only":
        objective = ObjectiveConfig(name="none")
    elif not trained.base_active:
        raise ConfigError(
            "mode=aux+rl trains the run's base objective as well, and the run has objective.name="
            "none. Use mode=aux_only."
        )
    config = replace(
        trained,
        auxiliary=AuxiliaryConfig(),
        objective=objective,
        optim=trained.optim if settings.lr is None else replace(trained.optim, lr=settings.lr),
        run=trained.run if settings.seed is None else replace(trained.run, seed=settings.seed),
        eval=replace(trained.eval, tasks=settings.eval_tasks or None),
    )
    config.optim.check()
    config.run.check()
    return replace(config, run=replace(config.run, save_turns=False)), section


def section_of(name: str, section: SeroConfig, settings: ReplaySettings) -> SeroConfig:
    """The section with the rule of this name. A fixed decay is a base of powers.

    Raises:
        ConfigError: a value of the section is out of range.
    """
    rule, matched = RULES[name]
    section = replace(section, rule=rule)
    if rule == "depth":
        fixed = SeroConfig().delta if section.delta == "matched" else section.delta
        fixed = fixed if settings.delta is None else settings.delta
        section = replace(section, delta="matched" if matched else fixed, decay="exponential")
    section.check()
    return section
