"""Bytes that are alive while tokens are drawn, against what the plan says of them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer import small
from trainer.generation.base import GenerationRequest
from trainer.generation.draw import draw
from trainer.planning.accounting import ModelShape
from trainer.planning.load import load_of
from trainer.planning.memory import rollout_bytes


class _Alive(TorchDispatchMode):
    """Bytes of all results that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, storage._cdata)
        self.most = max(self.most, self.now)
        return found

    def _gone(self, place: int) -> None:
        self.now -= self._sizes.pop(place)


def test_what_a_draw_takes_is_in_the_plan() -> None:
    shape = ModelShape(1, 8, 1, 1, 8, 8, 20_000)
    config = small.small_config(run__dtype="bfloat16", optim__old_logprobs="recompute")
    load = load_of(config)
    rows = min(load.trajectories, config.sampler.max_batch_tokens // load.length)
    logits = torch.randn(rows, shape.vocab, dtype=torch.bfloat16)
    requests = [GenerationRequest([1], np.random.default_rng(i)) for i in range(rows)]
    with _Alive() as alive, torch.no_grad():
        draw(logits, requests, [False] * rows)
    planned = rollout_bytes(config, shape, load)["logits of a step"]
    taken = alive.most + logits.nbytes
    assert 0.95 * planned <= taken <= 1.05 * planned
