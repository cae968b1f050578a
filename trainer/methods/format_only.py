"""The format-only control in a run: format tokens of the step's own well-formed replies."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from trainer.auxiliary.format_control import format_row_coefficients
from trainer.learning.update import AuxiliaryRow, auxiliary_backward
from trainer.methods.protocol import Method, PassLimits, Rollouts, Step
from trainer.rollouts.data import Turn, make_segment

__all__ = ["FormatOnly"]


class FormatOnly(Method):
    """See `trainer.auxiliary.format_control`."""

    name = "format_only"
    _turns: Sequence[Turn] = ()
    _trained: Sequence[int] = ()

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        self._turns = rollouts.turns
        self._trained = [segment.trained for segment in rollouts.segments]

    def has_pass(self, step: Step) -> bool:
        return bool(self.rows(self.own(step)))

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        return auxiliary_backward(model, self.rows(self.own(step)), self.weight, limits)

    def own(self, step: Step) -> list[Turn]:
        """The step's turns, without those that somebody else brought into the groups.

        Turns that are left out of the base loss are left out here too.
        """
        return [self._turns[i] for i in step.turns if i < len(self._turns) and self._trained[i]]

    def rows(self, turns: Sequence[Turn]) -> list[AuxiliaryRow]:
        """All sampled tokens but those of the command, of replies that are well formed.

        They are scored at the temperature of their sampling, as the base does.
        """
        segments = []
        for turn in turns:
            if turn.format_valid:
                command = self.setup.student.command_mask(turn.response_ids)
                mask = [not inside for inside in command]
                segments.append(
                    make_segment(
                        turn.prompt_ids,
                        turn.response_ids,
                        mask=mask,
                        temperature=turn.temperature,
                    )
                )
        counts = [segment.trained for segment in segments]
        coefficients = format_row_coefficients(counts, n_rows=sum(n > 0 for n in counts))
        return [
            AuxiliaryRow(segment, coefficient)
            for segment, coefficient in zip(segments, coefficients, strict=True)
            if coefficient > 0.0
        ]
