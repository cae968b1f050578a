"""Environments of this process, one after another. They share compiled games or a shop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.pools.base import Began, Start, Stepped, TextEnvironment, reset_one, step_one

__all__ = ["SerialPool"]


class SerialPool:
    """An `EnvPool` over environments that are there already; the fastest for native engines."""

    def __init__(self, envs: Sequence[TextEnvironment]) -> None:
        self.envs = tuple(envs)

    @property
    def size(self) -> int:
        return len(self.envs)

    def reset_many(self, starts: Mapping[int, Start]) -> dict[int, Began]:
        return {i: reset_one(self.envs[i], start) for i, start in starts.items()}

    def step_many(self, commands: Mapping[int, str], *, snapshots: bool) -> dict[int, Stepped]:
        return {i: step_one(self.envs[i], command, snapshots) for i, command in commands.items()}

    def close(self) -> None:
        for env in self.envs:
            env.close()
