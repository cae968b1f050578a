"""What ranks add up: gradients of replicas, and the passes that shards have to make together."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Counts the ranks that still have passes to make; see `even_passes`."""

    def __init__(self) -> None:
        self.group: Group | None = None

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if self.group is not None:
            self.group.sum([1.0])


_meetings: WeakKeyDictionary[nn.Module, _Meeting] = WeakKeyDictionary()


def meets(model: nn.Module) -> None:
    """Makes a sharded model ready for `even_passes`."""
    meeting = _meetings[model] = _Meeting()
    # In front of the hook that gathers weights: ranks meet before they exchange anything else.
    model.register_forward_pre_hook(meeting, prepend=True)


@contextmanager
def even_passes(model: nn.Module, group: Group, *, gradient: bool) -> Iterator[None]:
    """Ranks may make different numbers of forward passes inside the block.

    A pass of a sharded model gathers weights from every rank, so all have to make it. Before each
    pass the ranks meet; those that have finished answer with passes of one token and loss 0 until
    nobody has any left. Replicas need none of this.

    Args:
        gradient: whether the passes of the block have backward passes: all of them, or none.
    """
    if group.alone or not group.sharded:
        yield
        return
    meeting = _meetings[model]
    meeting.group = group
    try:
        yield
    finally:
        meeting.group = None
    while group.sum([0.0])[0] > 0:
        _empty_pass(model, gradient)


def _empty_pass(model: nn.Module, gradient: bool) -> None:
    device = next(model.parameters()).device
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    with torch.set_grad_enabled(gradient):
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        if gradient:
            (logits.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
