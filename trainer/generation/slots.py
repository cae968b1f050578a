"""A batch of replies that is always running: finished rows leave, new requests join."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.generation.base import Generation, GenerationRequest
from trainer.generation.draw import draw
from trainer.generation.sessions import Prefix, PrefixStore

__all__ = ["KeyValueSession", "OpenSession", "Row", "Slots"]

# Finished rows leave the batch once this share is left: copying the cache costs about as much
# as half a step, so it should not happen at every token.
_COMPACT_BELOW = 0.7


class KeyValueSession(Protocol):
    """Keys and values of the rows of one batch."""

    def prefill(self) -> Tensor:
        """Logits (B, V) of each row's first new token."""

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits (B, V) after one more token for each row."""

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows, in this order."""

    def join(self, other: Any) -> None:
        """Append the rows of another session of the same model."""

    def kept(self, row: int, count: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Copies of keys and values of a row's first tokens, as `Prefix.layers`."""


# (prompts, tokens that each row may get, known prefixes: one for each prompt, or none at all)
OpenSession = Callable[
    [Sequence[Sequence[int]], Sequence[int], Sequence[Prefix] | None], KeyValueSession
]


@dataclass(slots=True)
class Row:
    """One request and what has been drawn for it."""

    request: GenerationRequest
    key: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    over: bool = False

    @property
    def most(self) -> int:
        """Tokens of prompt and longest possible reply."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens

    @property
    def name(self) -> str:
        """What an error calls it."""
        session = self.request.session
        return (
            f"request {self.key}{f' ({session})' if session else ''}, with a prompt of "
            f"{len(self.request.prompt_ids)} tokens, after {len(self.ids)} of its reply"
        )

    def generation(self, stop_ids: Collection[int]) -> Generation:
        reason = "stop" if self.ids[-1] in stop_ids else "length"
        return Generation(
            tuple(self.ids), tuple(self.logprobs), "stop" if reason == "stop" else "length"
        )


class Slots:
    """The running batch.

    Args:
        open_session: makes the keys and values of new rows.
        stop_ids: tokens that end a reply.
        store: where conversations leave their keys and values; None: nowhere.
    """

    def __init__(
        self, open_session: OpenSession, stop_ids: Collection[int], store: PrefixStore | None
    ) -> None:
        self.open_session, self.stop_ids, self.store = open_session, stop_ids, store
        self.rows: list[Row] = []
        self._session: KeyValueSession | None = None
        self._logits: Tensor | None = None

    @property
    def live(self) -> list[Row]:
        """Rows whose reply is not finished."""
        return [row for row in self.rows if not row.over]

    def add(self, rows: Sequence[Row]) -> None:
        """Prefills the prompts of `rows` and lets them join."""
        known: list[tuple[Row, Prefix]] = []
        unknown: list[Row] = []
        for row in rows:
            name = row.request.session
            found = None
            if self.store is not None and name is not None:
                found = self.store.find(name, row.request.prompt_ids)
            if found is None:
                unknown.append(row)
            else:
                known.append((row, found))
        if unknown:
            self._join(unknown, None)
        if known:
            self._join([row for row, _ in known], [prefix for _, prefix in known])

    def advance(self) -> list[Row]:
        """One token for every row; returns those that are finished with it.

        Raises:
            NonFiniteLogitsError: logits are not finite.
        """
        if self._session is None or self._logits is None:
            return []
        requests = [row.request for row in self.rows]
        before = [row.over for row in self.rows]
        tokens, logprobs = draw(self._logits, requests, before, lambda row: self.rows[row].name)
        finished = []
        for place, (row, token, logprob) in enumerate(
            zip(self.rows, tokens.tolist(), logprobs, strict=True)
        ):
            if row.over:
                continue
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.over = len(row.ids) >= row.request.max_new_tokens or token in self.stop_ids
            if row.over:
                finished.append(row)
                self._keep(row, place)
        keep = [place for place, row in enumerate(self.rows) if not row.over]
        if not keep:
            self.clear()
            return finished
        if len(keep) <= _COMPACT_BELOW * len(self.rows):
            self._select(keep)
            tokens = tokens[torch.tensor(keep, device=tokens.device)]
        self._logits = self._session.step(tokens)
        return finished

    def clear(self) -> None:
        """Lets all rows go."""
        self.rows, self._session, self._logits = [], None, None

    def _join(self, rows: list[Row], prefixes: list[Prefix] | None) -> None:
        session = self.open_session(
            [row.request.prompt_ids for row in rows],
            [row.request.max_new_tokens for row in rows],
            prefixes,
        )
        logits = session.prefill()
        if self._session is None or self._logits is None:
            self._session, self._logits, self.rows = session, logits, rows
            return
        keep = [place for place, row in enumerate(self.rows) if not row.over]
        if len(keep) < len(self.rows):
            self._logits = self._logits[torch.tensor(keep, device=logits.device)]
            self._select(keep)
        self._session.join(session)
        self._logits = torch.cat([self._logits, logits])
        self.rows = self.rows + rows

    def _select(self, keep: list[int]) -> None:
        assert self._session is not None
        self._session.select(keep)
        self.rows = [self.rows[place] for place in keep]

    def _keep(self, row: Row, place: int) -> None:
        """Leaves a conversation's keys and values in the store; those of the last token of a
        reply were never computed."""
        if self.store is None or row.request.session is None or self._session is None:
            return
        ids = (*row.request.prompt_ids, *row.ids[:-1])
        if len(ids) <= self.store.max_tokens:
            prefix = Prefix(tuple(ids), self._session.kept(place, len(ids)))
            self.store.put(row.request.session, prefix)
