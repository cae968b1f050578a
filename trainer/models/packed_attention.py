"""Several sequences one behind the other in one row, each blind to the others.

A packed row (1, N) has position ids that start again at 0 for every sequence, and no mask. Where
transformers sees such a row it keeps the sequences apart: flash attention by their boundaries,
`eager` and `sdpa` by a mask of N x N. Such a mask costs memory, keeps sdpa from its fast kernels
and makes the time of a row grow with N squared, so for `sdpa` there is an attention here that
runs one causal call a sequence instead. It is registered with transformers under a name of its
own; a model that is switched to it and gets no packed row does what `sdpa` does.

Nothing is taken on trust: `packs` tries a model once and answers False where a sequence sees its
neighbour or does not get the states that it has alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.errors import ConfigError
from trainer.models.lean import lean_of

__all__ = ["PACKED_SDPA", "pack_arguments", "packed_row", "packs", "use_packing"]

PACKED_SDPA = "packed_sdpa"
_PLAIN = ("sdpa", PACKED_SDPA)
_FLASH = "flash_attention"

_without_mask: ContextVar[bool] = ContextVar("without_mask", default=False)
_known: WeakKeyDictionary[nn.Module, tuple[str, bool]] = WeakKeyDictionary()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_lengths: Sequence[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`sdpa`, one causal call for each of `packed_lengths`. Shapes as transformers has them."""
    if packed_lengths is None:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return whole
    parts = (torch.split(x, list(packed_lengths), dim=2) for x in (query, key, value))
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
    model: nn.Module, position_1_N: Tensor, lengths: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Keyword arguments of a forward pass over a packed row, which has to be inside the block."""
    if implementation(model) != PACKED_SDPA:
        yield {"position_ids": position_1_N}
        return
    token = _without_mask.set(True)
    try:
        yield {"position_ids": position_1_N, "packed_lengths": tuple(lengths)}
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
        if next(model.parameters()).device.type == "cpu" and lean_of(model) is not None:
            return False
        return packs(model) and is_fast(model)
    if not packs(model):
        raise ConfigError(
            f"optim.packing: {type(model).__name__} with {implementation(model) or 'unknown'} "
            "attention does not keep sequences of one row apart. Leave it out or set it to false."
        )
    return True


def packs(model: nn.Module) -> bool:
    """Whether packed rows give this model's own states. Tried once; `sdpa` is switched to
    `packed_sdpa` where every layer is plainly causal."""
    name = implementation(model)
    body = getattr(model, "get_decoder", lambda: model)()
    if not name or body is model:
        return False
    if model not in _known or _known[model][0] != name:
        if name == "sdpa" and _plainly_causal(model):
            model.set_attn_implementation(PACKED_SDPA)  # type: ignore[operator]
        _known[model] = implementation(model), _separate(model)
    return _known[model][1]


def _plainly_causal(model: nn.Module) -> bool:
    config: Any = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None
    return set(kinds) == {"full_attention"}


def _separate(model: nn.Module) -> bool:
    """Three sequences packed, alone, and packed behind another neighbour."""
    device = next(model.parameters()).device
    size = int(getattr(model.config, "vocab_size", 8))
    rows = [[(7 * i + 3 * n + 1) % size for i in range(n)] for n in (5, 1, 6)]
    other = [[(i + 1) % size for i in rows[0]], *rows[1:]]
    policy: Any = model
    body = policy.get_decoder()

    def run(some: Sequence[Sequence[int]]) -> Tensor:
        ids, position, _ = packed_row(some, device)
        with pack_arguments(model, position, [len(row) for row in some]) as packed:
            states: Tensor = body(input_ids=ids, use_cache=False, **packed).last_hidden_state[0]
        return states

    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), _half_for_flash(model, device):
            together, beside = run(rows), run(other)
            alone = torch.cat(
                [
                    body(input_ids=torch.tensor([row], device=device), use_cache=False)
                    .last_hidden_state[0]
                    for row in rows
                ]
            )  # fmt: skip
    finally:
        for module in training:
            module.training = True
    behind = len(rows[0])
    if not torch.equal(together[behind:], beside[behind:]):
        return False
    exact = together.dtype == torch.float32 and not implementation(model).startswith(_FLASH)
    # bfloat16 has 8 bits: kernels may differ in the last of them.
    rough = 1e-4 if exact else 5e-2
    return bool(torch.allclose(together.float(), alone.float(), rtol=rough, atol=rough))


def _half_for_flash(model: nn.Module, device: torch.device) -> torch.autocast:
    """Flash attention has no kernels for float32."""
    flash = implementation(model).startswith(_FLASH)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=flash)
