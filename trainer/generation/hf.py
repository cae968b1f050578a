"""Sampling from any transformers causal language model with a key-value loop of our own.

Why not `model.generate`: it draws from the global generator, so a row's reply would depend
on its neighbours, and for a tiny model its bookkeeping costs more than the model.

- Padding follows from lengths. Token values are never looked at, so the pad id may equal the
  end id and either may occur inside a prompt.
- Each token takes one uniform from its row's own stream and inverts the float64 cumulative
  distribution. Order and size of the batch change nothing beyond floating point.
- Equal prompts (the rollouts of one group at turn 0) are prefilled once.
- Streaming: finished rows leave the running batch, and new prompts join it. A conversation
  (`GenerationRequest.session`) computes only what its last turn did not. Both need a model whose
  attention learns positions from `position_ids` alone; any other works in rounds.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache

from trainer.generation.base import Generation, GenerationRequest, SamplerError, check_request
from trainer.generation.draw import invert_cdf
from trainer.generation.lean_session import LeanSession
from trainer.generation.sessions import Prefix, PrefixStore
from trainer.generation.slots import KeyValueSession, Row, Slots
from trainer.models.lean import lean_of
from trainer.models.packed_attention import PACKED_SDPA
from trainer.models.policy import body_and_head, evaluation_mode, micro_batches

__all__ = ["HFSampler", "invert_cdf"]

# New prompts join once this share of the running batch is finished. Each joining costs a forward
# pass of its own and a copy of the cache, so a tiny model, for which calls cost more than rows,
# finishes its round: on one CPU core half is 8 % slower than that with 32 rows.
_JOIN_SHARE = 0.125
_JOIN_SHARE_LEAN = 1.0

# Slots that hold nothing in any row are dropped once the longest row fills less than this share.
_ALIGN_BELOW = 0.8


class HFSampler:
    """`StreamingSampler` over a transformers model. Always samples with its current weights.

    Args:
        model: a causal language model, on any device.
        stop_ids: tokens that end a reply; they stay in the ids.
        pad_id: fills the padding; any valid id, it has no effect.
        max_batch_tokens: bound on rows x longest sequence in one forward.
        session_tokens: tokens of conversations whose keys and values are kept between turns.
        join_share: share of the running batch that is finished before `collect` returns and
            others join; None: as the model's kind wants. 1 makes rounds. Changes no reply.
    """

    def __init__(
        self,
        model: nn.Module,
        stop_ids: Collection[int],
        *,
        pad_id: int = 0,
        max_batch_tokens: int = 16384,
        session_tokens: int = 131072,
        join_share: float | None = None,
    ) -> None:
        if not stop_ids:
            raise ValueError("stop_ids is empty; every reply would run to max_new_tokens")
        self.model = model
        self.stop_ids = frozenset(int(i) for i in stop_ids)
        self.pad_id = pad_id
        self.max_batch_tokens = max_batch_tokens
        self.join_share = join_share
        self.store = PrefixStore(session_tokens)
        self._weights: tuple[tuple[int, int], ...] = ()
        self._keys: set[int] = set()
        self._queue: deque[Row] = deque()
        self._running: Slots | None = None

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample one reply for each request, in their order.

        Raises:
            ValueError: a request that cannot be served, or logits that are not finite.
        """
        for request in requests:
            check_request(request)
        rows = [Row(request, place) for place, request in enumerate(requests)]
        self._finish(rows)
        return [row.generation(self.stop_ids) for row in rows]

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Take a request.

        Raises:
            ValueError: it cannot be served, or `key` is pending already.
        """
        check_request(request)
        if key in self._keys:
            raise ValueError(f"key {key} is pending already; collect it first")
        self._keys.add(key)
        self._queue.append(Row(request, key))

    def collect(self) -> list[tuple[int, Generation]]:
        """Replies that are finished next; [] when nothing is pending.

        Raises:
            ValueError: logits are not finite.
        """
        with evaluation_mode(self.model), torch.no_grad():
            done = self._advance() if self._joins() else self._round()
        self._keys -= {row.key for row in done}
        return [(row.key, row.generation(self.stop_ids)) for row in done]

    def drop(self) -> None:
        """Forget what is pending."""
        self._keys.clear()
        self._queue.clear()
        self._running = None

    def refresh(self) -> None:
        """The weights have changed: keys and values of conversations go.

        Raises:
            SamplerError: replies are still running, with the weights as they were.
        """
        if self._running is not None and self._running.live:
            raise SamplerError(
                "The weights changed while replies are running. Collect or drop them first."
            )
        self.store.clear()

    def close(self) -> None:
        """Lets all keys and values go."""
        self.drop()
        self.store.clear()

    def _joins(self) -> bool:
        return lean_of(self.model) is not None or _position_free(
            self.model, body_and_head(self.model)[0], DynamicCache(config=self.model.config)
        )

    def _round(self) -> list[Row]:
        """All that is pending, in one batch."""
        rows = list(self._queue)
        self._finish(rows)
        self._queue.clear()
        return rows

    def _finish(self, rows: Sequence[Row]) -> None:
        """Whole replies for all of `rows`, in batches of like length."""
        with evaluation_mode(self.model), torch.no_grad():
            for group in micro_batches([row.most for row in rows], self.max_batch_tokens):
                slots = self._slots([rows[i] for i in group])
                slots.add([rows[i] for i in group])
                while slots.rows:
                    slots.advance()

    def _advance(self) -> list[Row]:
        """Steps of the running batch until enough of it is finished."""
        if self._running is None:
            self._running = self._slots(list(self._queue))
        share = self.join_share
        if share is None:
            share = _JOIN_SHARE if lean_of(self.model) is None else _JOIN_SHARE_LEAN
        done: list[Row] = []
        while self._admit(share):
            done += self._running.advance()
            live = len(self._running.live)
            if done and (not live or len(done) >= share * (live + len(done))):
                break
        return done

    def _admit(self, share: float) -> bool:
        """Lets waiting rows join as far as there is room; false: nothing is running then."""
        assert self._running is not None
        live = self._running.live
        longest = max((row.most for row in live), default=0)
        fits = 0
        for row in self._queue:
            longest = max(longest, row.most)
            if (live or fits) and (len(live) + fits + 1) * longest > self.max_batch_tokens:
                break
            fits += 1
        # A full batch takes the next ones together, not one whenever one has left.
        if fits and (fits == len(self._queue) or fits >= share * len(live)):
            rows = [self._queue[i] for i in range(fits)]
            self._running.store = self._store_for(rows)
            self._running.add(rows)
            for _ in rows:
                self._queue.popleft()
        return bool(self._running.live)

    def _slots(self, rows: Sequence[Row]) -> Slots:
        return Slots(self._open, self.stop_ids, self._store_for(rows))

    def _store_for(self, rows: Sequence[Row]) -> PrefixStore | None:
        """The store, if any row is of a conversation, and emptied if the weights are others."""
        if not any(row.request.session for row in rows) or not self._joins():
            running = self._running
            return None if running is None else running.store
        # In-place updates count up a tensor's version: nothing is reused by mistake.
        weights = tuple((p.data_ptr(), p._version) for p in self.model.parameters())
        if weights != self._weights:
            self.store.clear()
            self._weights = weights
        return self.store

    def _open(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: Sequence[int],
        prefixes: Sequence[Prefix] | None,
    ) -> KeyValueSession:
        lean = lean_of(self.model)
        if lean is None:
            return _Session(self.model, prompts, self.pad_id, prefixes)
        return LeanSession(lean, prompts, self.pad_id, new_tokens, prefixes)


class _Session:
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
        self.model = model
        self.prefixes = prefixes
        self.body, self.head = body_and_head(model)
        self.cache: Any = DynamicCache(config=model.config)
        self.right = _position_free(model, self.body, self.cache)
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

    def join(self, other: _Session) -> None:
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


def _position_free(model: nn.Module, body: nn.Module | None, cache: Any) -> bool:
    """Whether every layer attends to all slots and learns positions from `position_ids`."""
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
