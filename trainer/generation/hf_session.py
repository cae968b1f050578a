"""Keys and values of one batch of replies, for any transformers causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache

from trainer.generation.base import SamplerError
from trainer.generation.sessions import Prefix
from trainer.models.packed_attention import PACKED_SDPA
from trainer.models.policy import body_and_head

__all__ = ["ModelSession", "check_steps", "position_free"]

_ATTENTION = frozenset(("DynamicLayer", "DynamicSlidingWindowLayer"))
_checked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

# Slots that hold nothing in any row are dropped once the longest row fills less than this share.
_ALIGN_BELOW = 0.8


class ModelSession:
    """Keys and values of one batch, with the padding that its prompts need.

    Two layouts. Padding on the right needs no mask in the prefill (causal attention hides
    what comes later), which is 1.6 times faster on a CPU; the gap between a prompt and its
    reply is masked in later steps. It requires that attention reads positions only from
    `position_ids`, hence full attention in every layer; anything else is padded on the left.
    """

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[Sequence[int]],
        pad_id: int,
        prefixes: Sequence[Prefix] | None = None,
    ) -> None:
        # What wraps a model (adapters) hides which arguments it takes, positions among them.
        self.model = model = getattr(model, "get_base_model", lambda: model)()
        self.prefixes = prefixes
        self.body, self.head = body_and_head(model)
        self.cache: Any = DynamicCache(config=model.config)
        self.right = position_free(model, self.cache)
        unique: dict[tuple[int, ...], int] = {}
        place = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
        if prefixes is not None:
            place = list(range(len(prompts)))
        self.prompts = list(unique) if prefixes is None else [tuple(p) for p in prompts]
        self.device = next(model.parameters()).device
        self.place = torch.tensor(place, device=self.device)
        lengths = torch.tensor([len(p) for p in self.prompts], device=self.device)
        self.width = max(len(p) for p in self.prompts)
        self.pad_id = pad_id
        slots = torch.arange(self.width, device=self.device)[None]
        first = self.width - lengths[:, None]
        self.mask = slots < lengths[:, None] if self.right else slots >= first
        self.position = slots.expand_as(self.mask) if self.right else (slots - first).clamp(min=0)
        self.next_position = lengths
        self.padded = bool((lengths != self.width).any())

    def prefill(self) -> Tensor:
        """Logits (B, V) of each row's first new token."""
        if self.prefixes is not None:
            return self._extend(self.prefixes)
        rows = []
        for prompt in self.prompts:
            pad = [self.pad_id] * (self.width - len(prompt))
            rows.append([*prompt, *pad] if self.right else [*pad, *prompt])
        ids = torch.tensor(rows, device=self.device)
        mask = None if self.right or not self.padded else self.mask
        if self.right:
            hidden = self._call(self.body, ids, mask, self.position).last_hidden_state
            row = torch.arange(len(rows), device=self.device)
            logits: Tensor = self.head(hidden[row, self.next_position - 1])
        else:
            logits = self._call(self.model, ids, mask, self.position, last=True).logits[:, -1]
        if len(self.place) != len(rows):
            self._reorder(self.place)
            logits = logits[self.place]
        return logits

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits (B, V) after one more token for each row."""
        new = torch.ones_like(self.mask[:, :1])
        self.mask = torch.cat([self.mask, new], dim=1)
        mask = self.mask if self.padded else None
        position = self.next_position[:, None]
        out = self._call(self.model, tokens_B[:, None], mask, position, last=True)
        self.next_position = self.next_position + 1
        logits: Tensor = out.logits[:, -1]
        return logits

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._reorder(torch.tensor(keep, device=self.device))

    def join(self, other: ModelSession) -> None:
        """Append the rows of another session of the same model. Both must be position-free."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        self._widen(width)
        other._widen(width)
        for mine, new in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.keys = torch.cat([mine.keys, new.keys])
            mine.values = torch.cat([mine.values, new.values])
        self.mask = torch.cat([self.mask, other.mask])
        self.next_position = torch.cat([self.next_position, other.next_position])
        if int(self.mask.sum(dim=1).max()) < _ALIGN_BELOW * width:
            self._align()
        self.padded = not bool(self.mask.all())

    def kept(self, row: int, count: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Copies of keys and values of a row's first `count` tokens."""
        slots = self.mask[row].nonzero().squeeze(-1)[:count]
        return tuple((c.keys[row][:, slots], c.values[row][:, slots]) for c in self.cache.layers)

    def _extend(self, prefixes: Sequence[Prefix]) -> Tensor:
        """`prefill` after prefixes: these on the left, padded there; the rest as ever."""
        device = self.device
        known = torch.tensor([len(p.ids) for p in prefixes], device=device)
        most = int(known.max())
        for layer in range(len(prefixes[0].layers)):
            parts = []
            for part in (0, 1):
                rows = [pad(p.layers[layer][part], (0, 0, most - len(p.ids), 0)) for p in prefixes]
                parts.append(torch.stack(rows))
            self.cache.update(parts[0], parts[1], layer)
        fresh = [p[len(q.ids) :] for p, q in zip(self.prompts, prefixes, strict=True)]
        width = max(len(row) for row in fresh)
        ids = [[*row, *[self.pad_id] * (width - len(row))] for row in fresh]
        lengths = torch.tensor([len(row) for row in fresh], device=device)
        slots = torch.arange(width, device=device)
        before = torch.arange(most, device=device) >= most - known[:, None]
        self.mask = torch.cat([before, slots < lengths[:, None]], dim=1)
        self.padded = not bool(self.mask.all())
        hidden = self._call(
            self.body,
            torch.tensor(ids, device=device),
            self.mask if self.padded else None,
            known[:, None] + slots,
        ).last_hidden_state
        self.prefixes = None
        logits: Tensor = self.head(hidden[torch.arange(len(fresh), device=device), lengths - 1])
        return logits

    def _widen(self, width: int) -> None:
        """Empty slots on the left up to `width` in all."""
        missing = width - self.mask.shape[1]
        if missing:
            self.mask = pad(self.mask, (missing, 0))
            for layer in self.cache.layers:
                layer.keys = pad(layer.keys, (0, 0, missing, 0))
                layer.values = pad(layer.values, (0, 0, missing, 0))

    def _align(self) -> None:
        """Every row's tokens to the right, without a gap; slots empty in all rows go."""
        counts = self.mask.sum(dim=1)
        width = int(counts.max())
        slots = self.mask.int().argsort(dim=1, stable=True)[:, -width:]
        for layer in self.cache.layers:
            index = slots[:, None, :, None].expand(-1, layer.keys.shape[1], -1, 1)
            layer.keys = layer.keys.gather(2, index.expand(-1, -1, -1, layer.keys.shape[3]))
            layer.values = layer.values.gather(2, index.expand(-1, -1, -1, layer.values.shape[3]))
        self.mask = torch.arange(width, device=self.device) >= width - counts[:, None]

    def _reorder(self, index: Tensor) -> None:
        self.cache.reorder_cache(index)
        self.mask = self.mask[index]
        self.next_position = self.next_position[index]

    def _call(
        self,
        module: nn.Module,
        ids: Tensor,
        mask: Tensor | None,
        position: Tensor,
        last: bool = False,
    ) -> Any:
        known = inspect.signature(module.forward).parameters
        kwargs: dict[str, Any] = {
            "input_ids": ids,
            # transformers renamed the argument within the 5.x series.
            ("cache" if "cache" in known else "past_key_values"): self.cache,
            "use_cache": True,
        }
        if mask is not None:
            kwargs["attention_mask"] = mask.long()
        if "position_ids" in known:
            kwargs["position_ids"] = position
        if last and "logits_to_keep" in known:
            kwargs["logits_to_keep"] = 1
        return module(**kwargs)


def check_steps(model: nn.Module) -> None:
    """Whether padded prompts, continued token by token, get the logits of the model's own pass.

    Attention does as it is told by mask and positions. A model that keeps a state instead of keys
    and values may let padding into it or not take it at all, so such a one is tried once.

    Raises:
        SamplerError: other logits: replies would not be those of the model that is trained.
    """
    model = getattr(model, "get_base_model", lambda: model)()
    if model not in _checked:
        _checked[model] = _only_attention(model) or _steps_agree(model)
    if not _checked[model]:
        raise SamplerError(
            f"{type(model).__name__} computes other logits where prompts of several lengths are "
            "padded and continued token by token than in one pass over a whole text, so replies "
            "would not be those of the model that is trained. Use another model, or "
            "sampler.backend=vllm if the server knows this one."
        )


def _only_attention(model: nn.Module) -> bool:
    known = inspect.signature(model.forward).parameters
    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
    return kinds <= _ATTENTION and not known.keys().isdisjoint(("cache", "past_key_values"))


def _steps_agree(model: nn.Module) -> bool:
    """Two prompts of different length and three more tokens each, against whole texts."""
    size = int(getattr(model.config, "vocab_size", 8))
    device = next(model.parameters()).device
    rows = [[(7 * i + 3) % size for i in range(n)] for n in (5, 2)]
    session = ModelSession(model, rows, 0)
    found = [session.prefill()]
    for more in range(3):
        token = (11 * more + 1) % size
        found.append(session.step(torch.full((2,), token, device=device)))
        rows = [[*row, token] for row in rows]
    stepped = torch.stack(found, dim=1).float()
    whole = torch.stack(
        [model(input_ids=torch.tensor([row], device=device)).logits[0, -4:].float() for row in rows]
    )
    centred = whole - whole.mean(dim=-1, keepdim=True)
    # Half precision rounds much, and experts may be chosen otherwise; what is wrong is far off.
    rough = 0.02 if next(model.parameters()).dtype == torch.float32 else 0.5
    return bool((stepped - whole).norm() <= rough * centred.norm())


def position_free(model: nn.Module, cache: Any = None) -> bool:
    """Whether every layer attends to all slots and learns positions from `position_ids`.

    Args:
        cache: an empty one of the model; None: made for the question.
    """
    body = body_and_head(model)[0]
    cache = DynamicCache(config=model.config) if cache is None else cache
    if body is None:
        return False
    full = all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
    rotary = any("rotary" in name.lower() for name, _ in model.named_modules())
    return (
        full
        and bool(cache.layers)
        and rotary
        and "position_ids" in inspect.signature(body.forward).parameters
        and getattr(model.config, "_attn_implementation", "") in ("sdpa", "eager", PACKED_SDPA)
    )
