"""What ranks add up: gradients of replicas, and the passes that shards have to make together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.parallel.context import Group

__all__ = ["even_passes", "meets", "sum_gradients"]

BUCKET = 1 << 24
"""Numbers in one message: large enough to be fast, small beside the model."""


def sum_gradients(model: nn.Module, group: Group) -> None:
    """Replaces the gradients of a replica by their sums over the ranks: once an optimiser step.

    A parameter without a gradient here counts as 0. One without a gradient on every rank keeps
    none: weight decay would move it, and would not in one process. Shards have been summed in the
    backward pass already; nothing happens to them.
    """
    if group.alone or group.sharded:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    moved = group.any([p.grad is not None for p in parameters])
    chosen = [p for p, has in zip(parameters, moved, strict=True) if has]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for bucket in _buckets([p.grad for p in chosen if p.grad is not None]):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        place = 0
        for gradient in bucket:
            gradient.copy_(flat[place : place + gradient.numel()].view_as(gradient))
            place += gradient.numel()


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, up to `BUCKET` numbers together."""
    bucket: list[Tensor] = []
    filled = 0
    for gradient in gradients:
        if bucket and (filled + gradient.numel() > BUCKET or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, filled = [], 0
        bucket.append(gradient)
        filled += gradient.numel()
    if bucket:
        yield bucket


class _Meeting:
    """In front of every pass of a sharded model: ranks agree which kind of pass comes next."""

    def __init__(self, empty: EmptyPass) -> None:
        self.group: Group | None = None
        self._empty = empty
        self._answering = False

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if self.group is None or self._answering:
            return
        gradient = torch.is_grad_enabled()
        # Passes without a gradient come first; who wants the other kind helps with them.
        while self._kinds(gradient)[0] and gradient:
            self._answer(module, gradient=False)

    def finish(self, module: nn.Module) -> None:
        """Takes part in the passes of the others until nobody has any left."""
        while True:
            plain, learning = self._kinds(None)
            if not plain and not learning:
                return
            self._answer(module, gradient=not plain)

    def _kinds(self, wanted: bool | None) -> tuple[bool, bool]:
        """Whether some rank wants a pass without a gradient, and one with."""
        assert self.group is not None
        plain, learning = self.group.any([wanted is False, wanted is True])
        return plain, learning

    def _answer(self, module: nn.Module, *, gradient: bool) -> None:
        self._answering = True
        try:
            with torch.set_grad_enabled(gradient):
                found = self._empty(module)
                if gradient:
                    (found.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
        finally:
            self._answering = False


EmptyPass = Callable[[Any], Tensor]
"""A pass of a model over next to nothing, in the way of its real ones; its result is summed."""

_meetings: WeakKeyDictionary[nn.Module, _Meeting] = WeakKeyDictionary()


def meets(model: nn.Module, empty: EmptyPass) -> None:
    """Makes a sharded model ready for `even_passes`."""
    meeting = _meetings[model] = _Meeting(empty)
    # In front of the hook that gathers weights: ranks meet before they exchange anything else.
    model.register_forward_pre_hook(meeting, prepend=True)


@contextmanager
def even_passes(model: nn.Module, group: Group) -> Iterator[None]:
    """Ranks may make different numbers of forward passes inside the block.

    A pass of a sharded model gathers weights from every rank, so all have to make it. Before each
    pass the ranks meet; those that have finished, or want a pass of the other kind, answer with a
    pass of one token and loss 0. Every pass with a gradient must have its backward pass before the
    next pass, and nothing else may be exchanged inside the block. Replicas need none of this, nor
    do models that are not sharded, such as a teacher of its own.
    """
    meeting = _meetings.get(model)
    if group.alone or not group.sharded or meeting is None or meeting.group is not None:
        yield
        return
    meeting.group = group
    try:
        yield
        meeting.finish(model)
    finally:
        meeting.group = None
