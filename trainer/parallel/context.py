"""The processes of a run: who this one is, and how they agree on numbers.

`ALONE` stands for a run in one process: every operation gives back what it is given, so code that
uses a `Group` has one way through. Nothing here is pickled: texts and bytes travel as such.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["ALONE", "Group"]


@dataclass(frozen=True, slots=True)
class Group:
    """One process among `world`. Every method with a result is a meeting of all of them: all must
    call it, in the same order.

    Attributes:
        rank: from 0 to world - 1.
        world: number of processes.
        device: where tensors lie that are exchanged; the accelerator's for NCCL.
        sharded: each rank holds a part of every weight (`fsdp`), else all of them (`ddp`).
    """

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    sharded: bool = False

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.world == 1

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Of every number, its sum over the ranks; float64."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Of every number, the largest of the ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Of every flag, whether it is set on any rank."""
        return [value > 0 for value in self.max([float(flag) for flag in flags])]

    def counts(self, n: int) -> list[int]:
        """`n` of every rank, in their order."""
        mine = [float(n) if rank == self.rank else 0.0 for rank in range(self.world)]
        return [int(value) for value in self.sum(mine)]

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of every rank, in their order. Floats come back bit for bit."""
        if self.alone:
            return [value]
        return [json.loads(text) for text in self.gather_bytes(json.dumps(value).encode())]

    def gather_bytes(self, value: bytes) -> list[bytes]:
        """Bytes of every rank, in their order."""
        if self.alone:
            return [value]
        sizes = self.counts(len(value))
        width = max(*sizes, 1)
        padded = torch.frombuffer(bytearray(value.ljust(width, b"\0")), dtype=torch.uint8)
        mine = padded.to(self.device)
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return [
            bytes(part.cpu().numpy().tobytes()[:size])
            for part, size in zip(found, sizes, strict=True)
        ]

    def wait(self) -> None:
        """Until every rank is here."""
        if not self.alone:
            self.sum([0.0])

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        if self.alone or not values:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, how)
        found: list[float] = tensor.tolist()
        return found


ALONE = Group()
"""A run in one process."""
