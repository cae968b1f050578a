"""The section `env` of a config: fields, defaults and what each value must satisfy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError

__all__ = ["EnvConfig", "GeneratedConfig", "GeneratedShopConfig", "WebShopConfig"]


@dataclass(frozen=True, slots=True)
class GeneratedConfig:
    """The generated households used where `env.data` is `generated`."""

    preset: Literal["small", "standard"] = "small"
    seed: int = 0
    train: int = 400
    valid_seen: int = 100
    valid_unseen: int = 100
    task_types: tuple[str, ...] = ()  # empty: all six
    receptacles: int | None = None  # in a room; null: the preset's
    objects: int | None = None  # in a room; null: the preset's

    def check(self) -> None:
        for name in ("train", "valid_seen", "valid_unseen"):
            positive(f"env.generated.{name}", getattr(self, name), zero=True)
        for name in ("receptacles", "objects"):
            if getattr(self, name) is not None:
                positive(f"env.generated.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class GeneratedShopConfig:
    """The generated shop used where `env.data` is `generated`."""

    preset: Literal["small", "standard", "large"] = "small"
    seed: int = 0
    products: int | None = None  # null: the preset's

    def check(self) -> None:
        if self.products is not None:
            positive("env.webshop.generated.products", self.products)


@dataclass(frozen=True, slots=True)
class WebShopConfig:
    """What a shop needs to be said besides; read with `env.id: SeroWebShop-v0` only."""

    goal_source: Literal["synthetic", "human"] = "synthetic"
    split_by: Literal["goal", "product"] = "goal"  # `goal`: published; `product`: none in two
    observation_mode: Literal["text", "text_rich"] = "text"
    show_attributes: bool = False  # a fourth tab on item pages
    price_seed: int = 0  # keys price limits, and prices that the data gives as a range
    generated: GeneratedShopConfig = field(default_factory=GeneratedShopConfig)

    def check(self) -> None:
        self.generated.check()


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """Which environment, which tasks, how long."""

    id: str = "SeroALFWorld-v0"
    data: str | None = "generated"  # null: look for real data first; or a path
    generated: GeneratedConfig = field(default_factory=GeneratedConfig)
    webshop: WebShopConfig = field(default_factory=WebShopConfig)
    split: str = "train"
    task_types: tuple[str, ...] = ()  # restrict to these, empty: all
    max_steps: int = 15  # ours for small households; published ALFWorld: 50, WebShop: 15
    # Where training environments run: here, in worker processes, in Ray actors (package ray).
    pool: Literal["serial", "process", "ray"] = "serial"
    workers: int = 0  # processes or actors of the pool; 0: one a core, or an actor for 16

    def check(self) -> None:
        positive("env.max_steps", self.max_steps)
        positive("env.workers", self.workers, zero=True)
        if self.workers and self.pool == "serial":
            raise ConfigError(
                f"env.workers={self.workers} has no effect with env.pool=serial. Leave it out, or "
                "set env.pool to process or ray."
            )
        self.generated.check()
        self.webshop.check()
