"""Whether a model's logits are its output layer applied to its last hidden states, and no more.

Who scores few tokens of a long row wants the output layer for these tokens alone. That is right
only where nothing comes after it (Gemma 2 caps its logits, Cohere and Granite scale them) and
nothing between body and output layer. Comparing numbers at the weights as they are would miss a cap
that small logits do not feel, so the probe puts large states and large logits into the model's own
forward pass and looks at what arrives. Besides, a config that names such a scale is believed.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["has_plain_head"]

_FIELD = re.compile(r"(final_|output_|lm_head_)?logits?_(soft|cap|scal)\w*|lm_head_multiplier")
_SIZES = (1.0, 1000.0)


def has_plain_head(model: nn.Module, body: nn.Module, head: nn.Module) -> bool:
    """Whether `model(ids).logits` is `head(body(ids).last_hidden_state)`, at any weights.

    A few passes over four tokens, in the mode in which the model is; nothing draws.
    """
    if _says_otherwise(getattr(model, "config", None)):
        return False
    device = next(model.parameters()).device
    ids = torch.arange(4, device=device)[None] % int(getattr(head, "out_features", 4))
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        parts = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        if not _same(whole, parts):
            return False
        return all(_passes_on(model, body, head, ids, size) for size in _SIZES)


def _says_otherwise(config: Any) -> bool:
    """Whether the config has a scale or a cap of logits that is not neutral."""
    texts = getattr(config, "get_text_config", lambda: config)()
    fields = {**getattr(config, "__dict__", {}), **getattr(texts, "__dict__", {})}
    return any(_FIELD.fullmatch(k) and v not in (None, 0, 1) for k, v in fields.items())


def _passes_on(
    model: nn.Module, body: nn.Module, head: nn.Module, ids: Tensor, size: float
) -> bool:
    """Whether states put in the place of the body's reach the output layer unchanged, and so do
    its logits the end of the model's forward pass."""
    put: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}

    def after_body(module: nn.Module, given: Any, output: Any) -> Any:
        put["hidden"] = output.last_hidden_state = _wave(output.last_hidden_state, size)
        return output

    def after_head(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen["hidden"] = given[0]
        put["logits"] = _wave(output, size)
        return put["logits"]

    hooks = [body.register_forward_hook(after_body), head.register_forward_hook(after_head)]
    try:
        seen["logits"] = model(input_ids=ids, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return put.keys() == seen.keys() and all(_same(seen[key], put[key]) for key in put)


def _wave(like: Tensor, size: float) -> Tensor:
    """Values from -size to size in the shape of another tensor."""
    return torch.linspace(-size, size, like.numel(), device=like.device).to(like).reshape_as(like)


def _same(found: Tensor, expected: Tensor) -> bool:
    # Against the largest value: a fixed bound would pass any small logits.
    bound = 1e-3 * float(expected.abs().max())
    if found.shape != expected.shape or not math.isfinite(bound):
        return False
    return bool(torch.allclose(found.float(), expected.float(), rtol=1e-3, atol=bound))
