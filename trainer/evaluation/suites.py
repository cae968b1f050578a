"""The published evaluation sets: which splits, how many tasks each has, how long an episode is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent_envs.errors import MissingData
from trainer.worlds.environments import ALFWORLD, WEBSHOP

__all__ = ["SUITES", "Suite", "suite_of"]


@dataclass(frozen=True, slots=True)
class Suite:
    """Every task of these splits, once.

    Attributes:
        splits: number of tasks by name.
        max_steps: commands in an episode, as published.
    """

    name: str
    env_id: str
    splits: Mapping[str, int]
    max_steps: int

    def check(self, split: str, found: int, source: str) -> None:
        """Refuses tasks that are not the published ones, by their number.

        Raises:
            MissingData: names both numbers.
        """
        expected = self.splits[split]
        if found != expected:
            raise MissingData(
                f"The suite {self.name} has {expected} tasks in {split}, the tasks from {source} "
                f"have {found}. Name the published data with --data (see docs/data.md), or "
                f"evaluate these with --split {split} and without --suite."
            )


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "alfworld": Suite(
            "alfworld",
            ALFWORLD,
            MappingProxyType({"valid_seen": 140, "valid_unseen": 134}),
            max_steps=50,
        ),
        "webshop": Suite("webshop", WEBSHOP, MappingProxyType({"test": 500}), max_steps=15),
    }
)


def suite_of(env_id: str) -> Suite | None:
    """The suite of an environment, if there is one."""
    return next((suite for suite in SUITES.values() if suite.env_id == env_id), None)
