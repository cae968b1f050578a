"""The end of a run whose numbers are not finite: what happened, and which checkpoint is good.

Gradients, weights, and the logits that replies are drawn from. `status.json` says `nonfinite`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_envs.errors import SeroError
from trainer.generation.base import NonFiniteLogitsError
from trainer.runs.checkpoint import last_finite
from trainer.runs.status import write_status

if TYPE_CHECKING:
    from trainer.iteration import Trainer

__all__ = ["NonFiniteError", "check_finite", "finite_logits"]


class NonFiniteError(SeroError, ArithmeticError):
    """A run that cannot go on: its gradients, weights or logits are not finite any more."""


def check_finite(trainer: Trainer, done: int) -> None:
    """Ends a run that cannot learn any more.

    Args:
        done: finished iterations.

    Raises:
        NonFiniteError: names the last checkpoint whose weights are finite.
    """
    limit = trainer.config.run.nonfinite_limit
    refused = trainer.learner.counters.nonfinite_in_a_row
    if trainer.learner.finite_weights():
        if not 0 < limit <= refused:
            return
        what = f"The last {refused} optimiser steps were refused: no gradient was finite."
    else:
        what = "The policy's weights are not finite any more."
    raise _ended(trainer, done - 1, done, what, None)


@contextmanager
def finite_logits(trainer: Trainer, done: Sequence[int]) -> Iterator[None]:
    """Ends the run where a reply cannot be drawn, since no logits are finite.

    Weights that make such logits may be finite themselves, so a checkpoint of them is not good.

    Args:
        done: numbers of finished iterations, the latest last.

    Raises:
        NonFiniteError: names the last checkpoint before whose weights are finite.
    """
    try:
        yield
    except NonFiniteLogitsError as error:
        now = done[-1]
        raise _ended(trainer, now, now, f"No reply could be drawn. {error}", now) from error


def _ended(
    trainer: Trainer, iteration: int, done: int, what: str, before: int | None
) -> NonFiniteError:
    """Says so in `status.json`, and what to raise."""
    folder = trainer.folder
    write_status(folder, trainer.config, "nonfinite", done)
    good = last_finite(folder.checkpoints, before)
    where = f"Iteration {iteration} of {folder.path}: {what}"
    if good is None and before == 0:
        return NonFiniteError(
            f"{where} The run began with this policy: start another one with another model.path, "
            "run.dtype or warmstart."
        )
    way_out = (
        f"There is no checkpoint before; {folder.initial} holds the policy it began with."
        if good is None
        else f"The last good checkpoint is {good}."
    )
    return NonFiniteError(
        f"{where} {way_out} Try a smaller optim.lr or optim.grad_clip, or another run.dtype, in a "
        "new run with model.path on that folder; run.nonfinite_limit says how many refused steps "
        "are too many."
    )
