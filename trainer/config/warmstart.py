"""The warm start's section of a config: fields, defaults and what each value must satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.sections import positive
from trainer.errors import ConfigError

__all__ = ["WarmstartConfig"]


@dataclass(frozen=True, slots=True)
class WarmstartConfig:
    """Supervised warm start on an oracle's demonstrations: of a fresh model, or of a given one."""

    demonstrations: int = 400  # ours; 0: no warm start
    given_model: bool = False  # also where `model.path` gives the policy; else it stays as it is
    # Who demonstrates: the environment's own, or another, see auxiliary. Where it has none by name
    # and this is left at `planner`: the `module:factory` of an auxiliary objective.
    oracle: str = "planner"
    # Trained tokens of a reply. null: `all` of a fresh model, `command_closing` of a given one.
    loss_tokens: Literal["command", "command_closing", "after_think", "all"] | None = None
    text_steps: int = 0  # first steps, trained on whole rows: the environment's text as well
    steps: int = 600  # then so many, trained on the replies
    batch: int = 32
    lr: float | None = None  # ours; null: 3e-3 for a fresh model, 1e-5 for a given one
    warmup_steps: int = 20
    random_share: float = 0.1  # steps replaced by a random admissible command, not trained
    inadmissible_share: float = 0.05  # steps replaced by a refused command, not trained
    seed: int = 0

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up."""
        if self.lr is not None:
            return self.lr
        return 1e-5 if self.given_model else 3e-3

    @property
    def trained_tokens(self) -> Literal["command", "command_closing", "after_think", "all"]:
        """Tokens of a reply that are trained."""
        if self.loss_tokens is not None:
            return self.loss_tokens
        return "command_closing" if self.given_model else "all"

    def check(self) -> None:
        positive("warmstart.demonstrations", self.demonstrations, zero=True)
        if self.given_model and not self.demonstrations:
            raise ConfigError(
                "warmstart.given_model=true with warmstart.demonstrations=0 would train on "
                "nothing. Set demonstrations to 1 or more, or given_model to false."
            )
        positive("warmstart.text_steps", self.text_steps, zero=True)
        positive("warmstart.steps", self.steps, zero=True)
        positive("warmstart.batch", self.batch)
        if self.lr is not None:
            positive("warmstart.lr", self.lr)
        positive("warmstart.warmup_steps", self.warmup_steps, zero=True)
        positive("warmstart.random_share", self.random_share, zero=True)
        positive("warmstart.inadmissible_share", self.inadmissible_share, zero=True)
        if not 0.0 <= self.random_share + self.inadmissible_share < 1.0:
            raise ConfigError(
                f"warmstart.random_share={self.random_share} and warmstart.inadmissible_share="
                f"{self.inadmissible_share} must sum to less than 1: the planner has to act."
            )
