"""The training prompt, without an update: what a model does before it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from agent_envs.prompting import ParsedReply, PromptTemplate
from trainer.baselines.episodes import Situation
from trainer.baselines.models import Prompt

__all__ = ["PlainAgent"]


@dataclass(frozen=True)
class PlainAgent:
    """A prompt template as it is used in training."""

    template: PromptTemplate

    context = "window"

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def hash(self) -> str:
        return self.template.hash

    @property
    def history_length(self) -> int | None:
        return self.template.history_length

    def prompt(self, situation: Situation) -> Prompt:
        """What training shows in this situation."""
        return self.template.render(situation.view)

    def parse(self, reply: str) -> ParsedReply:
        """As in training."""
        return self.template.parse(reply)

    def said(self, reply: str, parsed: ParsedReply) -> str:
        """Not used: the template shows commands."""
        return parsed.command

    def shown(self, reply: str, observation: str) -> str:
        """The observation."""
        return observation
