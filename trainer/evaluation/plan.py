"""What to evaluate on, and how: as asked for, before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.config import Config, ConfigError
from trainer.evaluation.suites import Suite

__all__ = ["METHODS", "Plan"]

METHODS = ("plain", "react", "reflexion")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to evaluate on, and how. None: as the subject's config says.

    Attributes:
        splits: which splits.
        tasks: how many tasks a split, spread evenly; 0: all.
        temperature: 0 is greedy.
        top_p: nucleus to sample from.
        seeds: how many sampling seeds, from the config's on; each plays every task.
        batch_size: episodes at a time; changes no outcome.
        data: another source of tasks.
        max_steps: commands in an episode.
        max_prompt_tokens: a longer prompt ends the episode.
        suite: a published set of tasks: all of them, under its step cap.
        method: `plain` (the training prompt), `react` or `reflexion`.
        trials: attempts at a task, with `reflexion`.
        list_commands: `react` and `reflexion` list the possible commands.
    """

    splits: Sequence[str] | None = None
    tasks: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seeds: int = 1
    batch_size: int | None = None
    data: str | None = None
    max_steps: int | None = None
    max_prompt_tokens: int | None = None
    suite: Suite | None = None
    method: str = "plain"
    trials: int = 1
    list_commands: bool = False

    def check(self) -> None:
        """Raises `ConfigError` on values that cannot be meant."""
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r} must be one of {', '.join(METHODS)}.")
        if self.trials < 1 or (self.trials > 1 and self.method != "reflexion"):
            raise ConfigError(
                f"trials={self.trials} must be at least 1, and more than 1 only with reflexion: "
                f"the method is {self.method}."
            )
        if self.list_commands and self.method == "plain":
            raise ConfigError("plain lists the commands anyway; list_commands is for react.")
        if self.seeds < 1 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"seeds={self.seeds} must be at least 1, top_p={self.top_p} in (0, 1]."
            )
        for name in ("max_steps", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if self.suite is not None and (self.splits is not None or self.tasks is not None):
            raise ConfigError(
                f"The suite {self.suite.name} is all tasks of its splits. Leave split and tasks "
                "out, or the suite."
            )

    def settled(self, config: Config) -> Config:
        """A config with what the plan says instead."""
        e = config.eval
        splits, tasks, max_steps = self.splits, self.tasks, self.max_steps
        if self.suite is not None:
            if config.env.id != self.suite.env_id:
                raise ConfigError(
                    f"The suite {self.suite.name} is of {self.suite.env_id}, the policy plays "
                    f"{config.env.id}."
                )
            splits, tasks = tuple(self.suite.splits), 0
            max_steps = self.suite.max_steps if max_steps is None else max_steps
        evaluation = replace(
            e,
            splits=e.splits if splits is None else tuple(splits),
            tasks=e.tasks if tasks is None else tasks or None,
            temperature=e.temperature if self.temperature is None else self.temperature,
            batch_size=e.batch_size if self.batch_size is None else self.batch_size,
        )
        evaluation.check()
        env = config.env
        if self.suite is not None and self.data is None and env.data == "generated":
            env = replace(env, data=None)  # a suite is of the published data, where they are found
        env = env if self.data is None else replace(env, data=self.data)
        env = env if max_steps is None else replace(env, max_steps=max_steps)
        env.check()
        return replace(config, eval=evaluation, env=env)
