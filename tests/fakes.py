"""Stand-ins for a tokenizer, a model and a sampler. They are exact and tiny, not mocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from trainer.generation.base import Generation, GenerationRequest
from trainer.rollouts.data import Turn


class ByteTokenizer:
    """Token id = byte value; 256 ends a reply and, on purpose, also pads."""

    eos_token_id = 256
    pad_token_id = 256
    chat_template = "fake"
    is_fast = True
    vocab_size = 257

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def __call__(self, text: str, **_: Any) -> dict[str, list[Any]]:
        ids, offsets = [], []
        for place, char in enumerate(text):
            for byte in char.encode():
                ids.append(byte)
                offsets.append((place, place + 1))
        return {"input_ids": ids, "offset_mapping": offsets}

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = False, **_: Any
    ) -> list[int]:
        text = "".join(f"[{m['role']}]{m['content']}\n" for m in messages)
        return self.encode(text + ("[assistant]" if add_generation_prompt else ""))


class TableModel(nn.Module):
    """Logits that are a free parameter (B, L, V), whatever the input: gradients show its use."""

    def __init__(self, logits_B_L_V: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits_B_L_V)

    def forward(
        self, input_ids: Tensor, use_cache: bool = False, logits_to_keep: Any = 0
    ) -> SimpleNamespace:
        if isinstance(logits_to_keep, Tensor):
            return SimpleNamespace(logits=self.table[:, logits_to_keep])
        return SimpleNamespace(logits=self.table[:, -logits_to_keep:])


class ScriptedSampler:
    """Answers with the text that `script` gives for a prompt's text.

    Log-probs are those of a uniform distribution over the vocabulary.
    """

    def __init__(self, tokenizer: Any, script: Callable[[str], str], size: int = 257) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.size = size

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        replies = []
        for request in requests:
            text = self.script(self.tokenizer.decode(list(request.prompt_ids)))
            ids = (*self.tokenizer.encode(text), self.tokenizer.eos_token_id)
            cut = ids[: request.max_new_tokens]
            logprob = -float(torch.log(torch.tensor(float(self.size))))
            reason = "stop" if len(cut) == len(ids) else "length"
            replies.append(Generation(cut, (logprob,) * len(cut), reason))
        return replies


def make_turn(**changes: Any) -> Turn:
    """A plausible turn; keyword arguments replace its fields."""
    values: dict[str, Any] = {
        "uid": "g0",
        "tid": "g0/0",
        "t": 0,
        "task_id": "train/task/trial",
        "task_type": "pick_and_place_simple",
        "goal": "put a mug in shelf.",
        "observation": "You are in the middle of a room.",
        "next_observation": "You arrive at shelf 1.",
        "anchor": "room",
        "admissible": ("go to shelf 1", "look"),
        "command": "go to shelf 1",
        "reply": "<think></think><action>go to shelf 1</action>",
        "format_valid": True,
        "command_valid": True,
        "parse_reason": None,
        "reward": 0.0,
        "task_score": 0.0,
        "success": False,
        "done": False,
        "stop_reason": None,
        "prompt_ids": (1, 2, 3),
        "response_ids": (4, 5),
        "logprobs": (-0.5, -0.25),
        "temperature": 1.0,
        "policy_version": 0,
        "steps_left": 15,
    }
    return Turn(**(values | changes))
