"""What the student has seen so far, as an immutable value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Exchange(NamedTuple):
    """One finished step: what was shown, what was sent, whether the env accepted it."""

    observation: str
    action: str
    command_valid: bool


@dataclass(frozen=True, slots=True)
class PromptView:
    """Everything a prompt may be built from. Holds nothing the student has not seen.

    Attributes:
        goal: the task sentence.
        observation: the current observation.
        admissible: commands the env would accept now.
        history: all finished steps as (observation, command), oldest first; a
            template keeps the last few.
        step: commands sent so far, so the first prompt has 0.
        action_templates: legal commands that cannot be listed, e.g. ``search[<query>]``.
    """

    goal: str
    observation: str
    admissible: tuple[str, ...] = ()
    history: tuple[tuple[str, str], ...] = ()
    step: int = 0
    action_templates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """Memory of one episode. Sharing it between a rollout and its branches is safe.

    Refused commands are kept: they used up a step and the student saw the refusal.
    """

    items: tuple[Exchange, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def append(self, observation: str, action: str, command_valid: bool) -> History:
        """A longer history; this one stays as it was."""
        return replace(self, items=(*self.items, Exchange(observation, action, command_valid)))

    def last(self, length: int) -> tuple[Exchange, ...]:
        """The newest `length` steps, oldest first; none when `length` is 0."""
        if length < 0:
            raise ValueError(f"history length is {length}; expected 0 or more")
        return self.items[len(self.items) - min(length, len(self.items)) :]

    def view(
        self,
        goal: str,
        observation: str,
        admissible: Sequence[str] = (),
        action_templates: Sequence[str] = (),
    ) -> PromptView:
        """The prompt material for the decision that comes next."""
        return PromptView(
            goal=goal,
            observation=observation,
            admissible=tuple(admissible),
            history=tuple((item.observation, item.action) for item in self.items),
            step=len(self.items),
            action_templates=tuple(action_templates),
        )
