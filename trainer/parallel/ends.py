"""Body and head of a sharded policy, so that log-probs need no whole tensor of logits.

`trainer.models.policy` runs the body once a pass and the head in pieces of a few hundred tokens.
The unit around both gathers its weights in `forward` only, so both are given a way of their own:
the body goes through `forward`; the head's weights are gathered once a pass, kept until its
backward pass, and the gradient of all pieces is summed over the ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from trainer.models.policy import body_and_head, collate, token_logprobs
from trainer.rollouts.data import make_segment

__all__ = ["GatheredHead", "empty_pass", "open_ends"]


class GatheredHead:
    """The output layer in one pass of a sharded model; gathers its weights at its first call."""

    def __init__(self, head: Any) -> None:
        self._head = head
        self._whole: tuple[Tensor, Tensor | None] | None = None

    @property
    def weight(self) -> Tensor:
        """(V, H), as it is held: cut, between passes."""
        found: Tensor = self._head.weight
        return found

    @property
    def out_features(self) -> int:
        """Size of the vocabulary."""
        return int(self.weight.shape[0])

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        if self._whole is None:
            bias = getattr(self._head, "bias", None)
            self._whole = gathered(self._head.weight), None if bias is None else gathered(bias)
        return nn.functional.linear(hidden, *self._whole)


def gathered(tensor: Tensor) -> Tensor:
    """A cut parameter made whole; its gradients are summed over the ranks on the way back."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor(grad_placements=[Partial("sum")])
    return whole


def open_ends(model: Any) -> None:
    """Before a model is cut: gives it the body and the head that a pass may call.

    Where logits are more than head(hidden) there is no such way, and `forward` is the only one.
    """
    body, head = body_and_head(model)
    if body is None or not isinstance(head, nn.Linear):
        model.get_decoder = _none
        return
    forward: Callable[..., Any] = model.forward

    def either(*args: Any, only_body: bool = False, **kwargs: Any) -> Any:
        return body(*args, **kwargs) if only_body else forward(*args, **kwargs)

    def through_forward(**kwargs: Any) -> Any:
        return model(only_body=True, **kwargs)

    model.forward = either
    model.get_decoder = lambda *_, **__: through_forward
    model.get_output_embeddings = lambda: GatheredHead(head)


def _none(*_: Any, **__: Any) -> None:
    return None


def empty_pass(model: nn.Module) -> Tensor:
    """A pass over one token, in the way of all others."""
    device = next(model.parameters()).device
    batch = collate([make_segment((0,), (0,))], device=device)
    return token_logprobs(model, batch).logprobs
