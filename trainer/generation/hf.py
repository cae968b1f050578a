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

from collections import deque
from collections.abc import Collection, Sequence

import torch
from torch import nn

from trainer.generation.base import Generation, GenerationRequest, SamplerError, check_request
from trainer.generation.draw import invert_cdf
from trainer.generation.hf_session import ModelSession, check_steps, position_free
from trainer.generation.lean_session import LeanSession
from trainer.generation.sessions import Prefix, PrefixStore
from trainer.generation.slots import KeyValueSession, Row, Slots
from trainer.models.lean import lean_of
from trainer.models.policy import evaluation_mode, micro_batches

__all__ = ["HFSampler", "invert_cdf"]

# New prompts join once this share of the running batch is finished. Each joining costs a forward
# pass of its own and a copy of the cache, so a tiny model, for which calls cost more than rows,
# finishes its round: on one CPU core half is 8 % slower than that with 32 rows.
_JOIN_SHARE = 0.125
_JOIN_SHARE_LEAN = 1.0


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
            ValueError: a request that cannot be served.
            NonFiniteLogitsError: logits are not finite.
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
            NonFiniteLogitsError: logits are not finite.
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
        return lean_of(self.model) is not None or position_free(self.model)

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
            check_steps(self.model)
            return ModelSession(self.model, prompts, self.pad_id, prefixes)
        return LeanSession(lean, prompts, self.pad_id, new_tokens, prefixes)
