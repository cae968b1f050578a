"""Several sequences one behind the other in one row, each blind to the others.

A packed row (1, N) has position ids that start again at 0 for every sequence, and no mask. Where
transformers sees such a row it keeps the sequences apart: flash attention by their boundaries,
`eager` and `sdpa` by a mask of N x N. Such a mask costs memory, keeps sdpa from its fast kernels
and makes the time of a row grow with N squared, so for `sdpa` there is an attention here that
runs one causal call a sequence instead, or, where sequences share their first tokens, those of
`trainer.models.tree_attention`. It is registered with transformers under a name of its
own; a model that is switched to it and gets no packed row does what `sdpa` does.

Nothing is taken on trust: `packs` tries a model once and answers False where a sequence sees its
neighbour or does not get the states that it has alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.errors import ConfigError
from trainer.models.lean import Lean, lean_of
from trainer.models.prefix_tree import prefix_tree
from trainer.models.tree_attention import TreeRow, tree_row

__all__ = [
    "PACKED_SDPA",
    "pack_arguments",
    "packed_row",
    "packs",
    "shares",
    "short_way",
    "use_packing",
    "use_sharing",
]

PACKED_SDPA = "packed_sdpa"
_PLAIN = ("sdpa", PACKED_SDPA)
_FLASH = "flash_attention"


class _Found(NamedTuple):
    """What was found out of a model with the attention `name`."""

    name: str
    packs: bool
    shares: bool


_without_mask: ContextVar[bool] = ContextVar("without_mask", default=False)
_known: WeakKeyDictionary[nn.Module, _Found] = WeakKeyDictionary()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_parts: Sequence[int] | TreeRow | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`sdpa`, one causal call for each of the lengths `packed_parts`, or those of a tree.

    Shapes as transformers has them.
    """
    if packed_parts is None:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return whole
    if isinstance(packed_parts, TreeRow):

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            found: Tensor = sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0]
            return found

        return packed_parts.whole(query, key, value, attend), None
    parts = (torch.split(x, list(packed_parts), dim=2) for x in (query, key, value))
    seen = [
        sdpa_attention_forward(module, q, k, v, None, **kwargs)[0]
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(seen, dim=1), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """None while a packed row is run, else the mask of `sdpa`."""
    return None if _without_mask.get() else sdpa_mask(*args, **kwargs)


AttentionInterface.register(PACKED_SDPA, _attention)
AttentionMaskInterface.register(PACKED_SDPA, _mask)


def implementation(model: nn.Module) -> str:
    """Name of the model's attention in transformers; empty for a model that has none."""
    return str(getattr(getattr(model, "config", None), "_attn_implementation", None) or "")


def is_fast(model: nn.Module) -> bool:
    """Whether a packed row costs what its sequences cost, not N squared."""
    return implementation(model) == PACKED_SDPA or implementation(model).startswith(_FLASH)


def packed_row(
    rows: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, list[int]]:
    """Ids (1, N), position ids (1, N), and where each of the rows starts."""
    ids = [i for row in rows for i in row]
    places = [p for row in rows for p in range(len(row))]
    starts = [0]
    for row in rows[:-1]:
        starts.append(starts[-1] + len(row))
    return (
        torch.tensor([ids], dtype=torch.int64, device=device),
        torch.tensor([places], dtype=torch.int64, device=device),
        starts,
    )


@contextmanager
def pack_arguments(
    model: nn.Module, position_1_N: Tensor, packed: Sequence[int] | TreeRow
) -> Iterator[dict[str, Any]]:
    """Keyword arguments of a forward pass over a packed row, which has to be inside the block.

    Args:
        packed: lengths of the sequences, or the tree that the row holds (see `shares`).
    """
    if implementation(model) != PACKED_SDPA:
        yield {"position_ids": position_1_N}
        return
    token = _without_mask.set(True)
    try:
        held = packed if isinstance(packed, TreeRow) else tuple(packed)
        yield {"position_ids": position_1_N, "packed_parts": held}
    finally:
        _without_mask.reset(token)


def use_packing(model: nn.Module, wanted: bool | None) -> bool:
    """Whether passes over the model's segments are packed.

    Args:
        wanted: `optim.packing`. None: where a packed row costs no more than its sequences, except
            for models that have a shorter way on a CPU (`trainer.models.lean`), which pads.

    Raises:
        ConfigError: it is wanted, and the model cannot.
    """
    if wanted is False:
        return False
    if wanted is None:
        if not implementation(model) or implementation(model) == "eager":
            return False
        if short_way(model) is not None:
            return False
        return packs(model) and is_fast(model)
    if not packs(model):
        raise ConfigError(
            f"optim.packing: {type(model).__name__} with {implementation(model) or 'unknown'} "
            "attention does not keep sequences of one row apart. Leave it out or set it to false."
        )
    return True


def use_sharing(model: nn.Module, wanted: bool | None, packed: bool) -> bool:
    """Whether what segments have in common is run once, in one row.

    Models with a shorter way on a CPU take a tree of their own making; others where they pack by
    `packed_sdpa`. The rest share whole segments only (`trainer.models.packing.chains`).

    Args:
        wanted: `optim.packing`.
        packed: what `use_packing` has answered.
    """
    if wanted is False:
        return False
    return shares(model) if packed else short_way(model) is not None


def short_way(model: nn.Module) -> Lean | None:
    """`lean_of` on a CPU. Elsewhere a packed pass of the model itself is as good."""
    return lean_of(model) if next(model.parameters()).device.type == "cpu" else None


def packs(model: nn.Module) -> bool:
    """Whether packed rows give this model's own states. Tried once; `sdpa` is switched to
    `packed_sdpa` where every layer is plainly causal."""
    name = implementation(model)
    body = getattr(model, "get_decoder", lambda: model)()
    if not name or body is model:
        return False
    if model not in _known or _known[model].name != name:
        if name == "sdpa" and _plainly_causal(model):
            model.set_attn_implementation(PACKED_SDPA)  # type: ignore[operator]
        _known[model] = _probe(model)
    return _known[model].packs


def shares(model: nn.Module) -> bool:
    """Whether a packed row may hold what its sequences have in common once. Tried with `packs`."""
    return packs(model) and _known[model].shares


def _plainly_causal(model: nn.Module) -> bool:
    config: Any = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None
    return set(kinds) == {"full_attention"}


def _probe(model: nn.Module) -> _Found:
    """Three sequences packed, alone, and packed behind another neighbour; four in a tree."""
    device = next(model.parameters()).device
    size = int(getattr(model.config, "vocab_size", 8))
    rows = [[(7 * i + 3 * n + 1) % size for i in range(n)] for n in (5, 1, 6)]
    other = [[(i + 1) % size for i in rows[0]], *rows[1:]]
    branches = [[*rows[2][:4], 0, 1], [*rows[2][:4], 0], [*rows[2][:4], 2 % size], rows[0]]
    policy: Any = model
    body = policy.get_decoder()

    def run(some: Sequence[Sequence[int]]) -> Tensor:
        ids, position, _ = packed_row(some, device)
        with pack_arguments(model, position, [len(row) for row in some]) as packed:
            states: Tensor = body(input_ids=ids, use_cache=False, **packed).last_hidden_state[0]
        return states

    def alone(some: Sequence[Sequence[int]]) -> Tensor:
        found = [
            body(input_ids=torch.tensor([row], device=device), use_cache=False).last_hidden_state[0]
            for row in some
        ]
        return torch.cat(found)

    exact = not implementation(model).startswith(_FLASH)

    def same(left: Tensor, right: Tensor) -> bool:
        # bfloat16 has 8 bits: kernels may differ in the last of them.
        rough = 1e-4 if exact and left.dtype == torch.float32 else 5e-2
        return bool(torch.allclose(left.float(), right.float(), rtol=rough, atol=rough))

    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), _half_for_flash(model, device):
            together, beside = run(rows), run(other)
            behind = len(rows[0])
            if not torch.equal(together[behind:], beside[behind:]):
                return _Found(implementation(model), False, False)
            packs = same(together, alone(rows))
            tree = packs and implementation(model) == PACKED_SDPA
            if tree:
                tree = same(_in_tree(model, body, branches, device), alone(branches))
    finally:
        for module in training:
            module.training = True
    return _Found(implementation(model), packs, tree)


def _in_tree(
    model: nn.Module, body: Any, rows: Sequence[Sequence[int]], device: torch.device
) -> Tensor:
    """States of all tokens, row by row, where what they have in common is run once."""
    tree = prefix_tree(rows, least=1)
    path_of = {i: path for group, path in zip(tree.groups, tree.paths, strict=True) for i in group}
    every = np.concatenate([path_of[i][: len(row)] for i, row in enumerate(rows)])
    ids, places = (torch.from_numpy(x)[None].to(device) for x in (tree.ids, tree.places))
    with pack_arguments(model, places, tree_row(tree, every, device)) as packed:
        states: Tensor = body(input_ids=ids, use_cache=False, **packed).last_hidden_state[0]
    return states[torch.from_numpy(every).to(device)]


def _half_for_flash(model: nn.Module, device: torch.device) -> torch.autocast:
    """Flash attention has no kernels for float32."""
    flash = implementation(model).startswith(_FLASH)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=flash)
