"""Keys and values of one batch of replies, for models that `trainer.models.lean` knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.models.lean import KeyValues, Lean


class LeanSession:
    """Prefill and decode of B prompts. Every row keeps its tokens without a gap.

    Equal prompts are prefilled once.

    Args:
        lean: the model.
        prompts: token ids of each row's prompt.
        pad_id: fills the padding; has no effect.
        new_tokens: tokens that a row may get.
    """

    def __init__(
        self, lean: Lean, prompts: Sequence[Sequence[int]], pad_id: int, new_tokens: int
    ) -> None:
        self.lean = lean
        unique: dict[tuple[int, ...], int] = {}
        self.place = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
        self.prompts = list(unique)
        self.pad_id = pad_id
        self.new_tokens = new_tokens
        self.cache: KeyValues

    def prefill(self) -> Tensor:
        """Logits (B, V) of each row's first new token."""
        device = self.lean.head.weight.device
        width = max(len(prompt) for prompt in self.prompts)
        ids = [[*prompt, *[self.pad_id] * (width - len(prompt))] for prompt in self.prompts]
        logits, self.cache = self.lean.prefill(
            torch.tensor(ids, device=device),
            torch.tensor([len(prompt) for prompt in self.prompts], device=device),
            width + self.new_tokens,
        )
        if len(self.place) == len(self.prompts):
            return logits
        index = torch.tensor(self.place, device=device)
        self.cache.select(index)
        return logits[index]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits (B, V) after one more token for each row."""
        return self.lean.step(tokens_B, self.cache)

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.cache.select(torch.tensor(keep, device=self.cache.lengths_B.device))
