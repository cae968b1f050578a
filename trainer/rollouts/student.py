"""Between an observation and token ids: the one way to make a prompt and to read its reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_envs.prompting import ChatTemplate, Message, PromptTemplate, PromptView
from trainer.rollouts import tokens
from trainer.rollouts.chat import NOTHING_SAID, ChatFormat, Conversation
from trainer.rollouts.data import Turn
from trainer.rollouts.tokens import ReplyTarget

__all__ = ["Student"]

_PROBE = PromptView("GOAL", "OBSERVATION", ("COMMAND",))


@dataclass(frozen=True, slots=True)
class Student:
    """Everything between an observation and token ids: the one way to make a prompt.

    Rollouts, branches, evaluation and demonstrations all come through here, so that a prompt
    can differ only where the student's own record differs.

    With a `ChatTemplate` prompts are those of a conversation, and whoever asks for one says what
    was said before; else the conversation is not looked at.

    Raises:
        ChatTemplateError: a conversation, and the tokenizer's chat template makes none.
    """

    template: PromptTemplate
    tokenizer: Any
    stop_ids: tuple[int, ...]
    max_prompt_tokens: int
    format: ChatFormat | None = field(init=False, repr=False, compare=False, default=None)

    _end: int | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.template, ChatTemplate):
            object.__setattr__(self, "format", ChatFormat(self.tokenizer, self.stop_ids))
        elif not isinstance(self.template.render(_PROBE), str):
            object.__setattr__(self, "_end", tokens.end_of_turn(self.tokenizer, self.stop_ids))

    @property
    def context(self) -> Literal["window", "chat"]:
        """How prompts of an episode follow each other."""
        return "window" if self.format is None else "chat"

    @property
    def end_id(self) -> int:
        """The token that ends a target: the chat template's own, where there is one."""
        if self.format is not None:
            return self.format.end_id
        return self.stop_ids[0] if self._end is None else self._end

    @property
    def pad_id(self) -> int:
        """Fills padding; what it is never matters."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else int(pad)

    def prompt(self, view: PromptView, said: Conversation = NOTHING_SAID) -> tuple[int, ...]:
        """Token ids of a prompt; may exceed `max_prompt_tokens`.

        Args:
            said: the conversation so far; needed in chat, but for the first turn.

        Raises:
            ValueError: a conversation of another number of turns than the view's.
        """
        if self.format is None:
            return tuple(tokens.encode_prompt(self.template, view, self.tokenizer))
        return self.format.prompt(said, self._message(view, said))

    def answered(
        self, said: Conversation, view: PromptView, prompt_ids: Sequence[int], reply: Sequence[int]
    ) -> Conversation:
        """The conversation after a turn; in `window` context there is none.

        Args:
            prompt_ids: of the turn, made from `view` and `said`.
            reply: ids of the reply, exactly as they were sampled or are to be trained.
        """
        if self.format is None:
            return said
        answer: Message = {"role": "assistant", "content": self.reply_text(reply)}
        messages = (*said.messages, self._message(view, said), answer)
        return Conversation(messages, (*prompt_ids, *reply))

    def conversation(self, turns: Sequence[Turn]) -> Conversation:
        """What was said in the first turns of an episode, from their record."""
        said = NOTHING_SAID
        for turn in turns if self.format is not None else ():
            view = PromptView(
                goal=turn.goal,
                observation=turn.observation,
                admissible=turn.admissible,
                step=turn.t,
                action_templates=turn.action_templates,
            )
            said = self.answered(said, view, turn.prompt_ids, turn.response_ids)
        return said

    def _message(self, view: PromptView, said: Conversation) -> Message:
        assert isinstance(self.template, ChatTemplate)
        if len(said.messages) != 2 * view.step:
            raise ValueError(
                f"The prompt of turn {view.step} of a conversation needs the {view.step} turns "
                f"before it, found {len(said.messages) // 2}."
            )
        return self.template.message(view)

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt is within the limit."""
        return len(prompt_ids) <= self.max_prompt_tokens

    def reply_text(self, ids: Sequence[int]) -> str:
        """Text of a sampled reply, without its end token."""
        return tokens.reply_text(self.tokenizer, ids, self.stop_ids)

    def target(self, command: str) -> ReplyTarget:
        """The reply that sends `command`, to be trained on."""
        return tokens.encode_reply(self.template, command, self.tokenizer, self.end_id)

    def sends(self, ids: Sequence[int], command: str) -> bool:
        """Whether a target, read as a reply is, sends `command`."""
        return tokens.sends(self.template, ids, self.tokenizer, self.end_id, command)

    def command_mask(self, ids: Sequence[int]) -> tuple[bool, ...]:
        """Which tokens of a sampled reply hold the executed command."""
        return tokens.command_mask(self.template, ids, self.tokenizer, self.stop_ids)
