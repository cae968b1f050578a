"""Sampling from any transformers causal language model with a key-value loop of our own.

Why not `model.generate`: it draws from the global generator, so a row's reply would depend
on its neighbours, and for a tiny model its bookkeeping costs more than the model.

- Padding follows from lengths. Token values are never looked at, so the pad id may equal the
  end id and either may occur inside a prompt.
- Each token takes one uniform from its row's own stream and inverts the float64 cumulative
  distribution. Order and size of the batch change nothing beyond floating point.
- Equal prompts (the rollouts of one group at turn 0) are prefilled once.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.generation.base import Generation, GenerationRequest, check_request
from trainer.generation.lean_session import LeanSession
from trainer.models.lean import lean_of
from trainer.policy import body_and_head, evaluation_mode, micro_batches

# Finished rows leave the batch once this share is left: copying the cache costs about as much
# as half a step, so it should not happen at every token.
_COMPACT_BELOW = 0.7


@dataclass(slots=True)
class _Row:
    request: GenerationRequest
    place: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HFSampler:
    """`Sampler` over a transformers model. Always samples with the model's current weights.

    Args:
        model: a causal language model, on any device.
        stop_ids: tokens that end a reply; they stay in the ids.
        pad_id: fills the padding; any valid id, it has no effect.
        max_batch_tokens: bound on rows x longest sequence in one forward.
    """

    def __init__(
        self,
        model: nn.Module,
        stop_ids: Collection[int],
        *,
        pad_id: int = 0,
        max_batch_tokens: int = 16384,
    ) -> None:
        if not stop_ids:
            raise ValueError("stop_ids is empty; every reply would run to max_new_tokens")
        self.model = model
        self.stop_ids = frozenset(int(i) for i in stop_ids)
        self.pad_id = pad_id
        self.max_batch_tokens = max_batch_tokens

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample one reply for each request, in their order.

        Raises:
            ValueError: a request that cannot be served, or logits that are not finite.
        """
        for request in requests:
            check_request(request)
        rows = [_Row(request, place) for place, request in enumerate(requests)]
        sizes = [len(r.prompt_ids) + r.max_new_tokens for r in requests]
        with evaluation_mode(self.model), torch.no_grad():
            for group in micro_batches(sizes, self.max_batch_tokens):
                self._generate([rows[i] for i in group])
        return [
            Generation(
                tuple(row.ids),
                tuple(row.logprobs),
                "stop" if row.ids[-1] in self.stop_ids else "length",
            )
            for row in rows
        ]

    def _generate(self, rows: list[_Row]) -> None:
        """Prefill and decode one batch; results go into the rows."""
        prompts = [row.request.prompt_ids for row in rows]
        lean = lean_of(self.model)
        session: _Session | LeanSession
        if lean is None:
            session = _Session(self.model, prompts, self.pad_id)
        else:
            room = max(row.request.max_new_tokens for row in rows)
            session = LeanSession(lean, prompts, self.pad_id, room)
        logits = session.prefill()
        live = rows
        while True:
            tokens = self._draw(live, logits)
            keep = [i for i, row in enumerate(live) if not self._finished(row)]
            if not keep:
                return
            if len(keep) <= _COMPACT_BELOW * len(live):
                session.select(keep)
                live = [live[i] for i in keep]
                tokens = tokens[torch.tensor(keep, device=tokens.device)]
            logits = session.step(tokens)

    def _finished(self, row: _Row) -> bool:
        return len(row.ids) >= row.request.max_new_tokens or row.ids[-1] in self.stop_ids

    def _draw(self, rows: Sequence[_Row], logits_B_V: Tensor) -> Tensor:
        """Next token of each row (B,). Rows that are finished keep what they have."""
        device = logits_B_V.device
        if not bool(logits_B_V.amax(dim=-1).isfinite().all()):
            raise ValueError(
                f"logits are not finite at token {max(len(row.ids) for row in rows)} of a reply. "
                "Check the weights and the learning rate."
            )
        done = [bool(row.ids) and self._finished(row) for row in rows]
        temperature = torch.tensor(
            [row.request.temperature for row in rows], dtype=torch.float64, device=device
        )
        logprobs = torch.log_softmax(logits_B_V.double() / temperature[:, None], dim=-1)
        greedy = [row.request.greedy for row in rows]
        if all(greedy):
            tokens = logprobs.argmax(dim=-1)
        else:
            uniform = [
                0.0
                if over or row.request.rng is None or row.request.greedy
                else row.request.rng.random()
                for row, over in zip(rows, done, strict=True)
            ]
            tokens = invert_cdf(
                logprobs.exp(), torch.tensor(uniform, dtype=torch.float64, device=device)
            )
            if any(greedy):
                mask = torch.tensor(greedy, device=device)
                tokens = torch.where(mask, logprobs.argmax(dim=-1), tokens)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1).tolist()
        for row, over, token, logprob in zip(rows, done, tokens.tolist(), chosen, strict=True):
            if not over:
                row.ids.append(token)
                row.logprobs.append(logprob)
        return tokens


def invert_cdf(probs_B_V: Tensor, uniform_B: Tensor) -> Tensor:
    """First token whose cumulative probability exceeds u, (B,) int64.

    Args:
        probs_B_V: float64, non-negative; need not sum to exactly 1.
        uniform_B: float64 in [0, 1).

    Never returns a token of probability 0, also where rounding pushes u times the total up to
    the total.
    """
    cumulative = probs_B_V.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    target = uniform_B[:, None] * total
    index = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, total, right=False)
    return torch.minimum(index, last).squeeze(-1)


class _Session:
    """Keys and values of one batch, with the padding that its prompts need.

    Two layouts. Padding on the right needs no mask in the prefill (causal attention hides
    what comes later), which is 1.6 times faster on a CPU; the gap between a prompt and its
    reply is masked in later steps. It requires that attention reads positions only from
    `position_ids`, hence full attention in every layer; anything else is padded on the left.
    """

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int]], pad_id: int) -> None:
        self.model = model
        self.body, self.head = body_and_head(model)
        self.cache: Any = DynamicCache(config=model.config)
        self.right = self.body is not None and _position_free(model, self.body, self.cache)
        unique: dict[tuple[int, ...], int] = {}
        place = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
        self.prompts = list(unique)
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


def _position_free(model: nn.Module, body: nn.Module, cache: Any) -> bool:
    """Whether every layer attends to all slots and learns positions from `position_ids`."""
    full = all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
    rotary = any("rotary" in name.lower() for name, _ in model.named_modules())
    return (
        full
        and bool(cache.layers)
        and rotary
        and "position_ids" in inspect.signature(body.forward).parameters
        and getattr(model.config, "_attn_implementation", "") in ("sdpa", "eager")
    )
