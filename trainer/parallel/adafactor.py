"""Adafactor over shards.

Its second moments are sums over the rows and the columns of a whole matrix, and its step is scaled
by the size of the whole matrix' step. Both are small or short-lived, so each matrix is gathered,
stepped whole on every rank alike, and cut again: one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.parallel.wrap import cut_like, gathered_whole

__all__ = ["ShardedAdafactor"]


class ShardedAdafactor(torch.optim.Optimizer):
    """`torch.optim.Adafactor` for parameters of which ranks hold parts.

    Moments are whole on every rank: a row and a column of each matrix.
    """

    keeps_whole = True

    def __init__(self, parameters: Iterable[nn.Parameter], **how: Any) -> None:
        super().__init__(parameters, how)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step; all ranks take it together."""
        for group in self.param_groups:
            how = {key: value for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, how)

    def _step(self, parameter: nn.Parameter, how: dict[str, Any]) -> None:
        whole = nn.Parameter(gathered_whole(parameter.detach()).clone())
        gradient: Tensor = gathered_whole(parameter.grad)  # type: ignore[arg-type]
        whole.grad = gradient
        inner = torch.optim.Adafactor([whole], **how)
        if parameter in self.state:
            inner.state[whole] = self.state[parameter]
        inner.step()  # type: ignore[no-untyped-call]
        self.state[parameter] = inner.state[whole]
        parameter.copy_(cut_like(whole.detach(), parameter))
