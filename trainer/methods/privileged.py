"""Prompts for teachers: the student's own prompt of a recorded turn, with something added.

Everything is built from the turn's record, so a teacher's prompt differs from the student's by what
was added and by nothing else; with nothing added it is the same token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_envs.prompting import PromptView
from trainer.auxiliary.feedback_context import Section
from trainer.auxiliary.teacher_prompt import CLOSING, build_teacher_prompt
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import encode_rendered, encode_text

__all__ = ["TeacherPrompt", "edited_prompt", "prompt_view", "rescored", "with_sections"]


@dataclass(frozen=True, slots=True)
class TeacherPrompt:
    """Token ids for the teacher.

    Attributes:
        ids: the prompt.
        on: whether anything privileged is in it; where it is not, the ids are the student's.
        truncated: whether privileged text was shortened or, where it did not fit, left out.
    """

    ids: tuple[int, ...]
    on: bool
    truncated: bool = False


def prompt_view(turn: Turn) -> PromptView:
    """What the prompt of a recorded turn was built from."""
    return PromptView(
        goal=turn.goal,
        observation=turn.observation,
        admissible=turn.admissible,
        history=tuple((observation, command) for observation, command, _ in turn.history),
        step=turn.t,
        action_templates=turn.action_templates,
    )


def with_sections(
    student: Student,
    turn: Turn,
    sections: Sequence[Section],
    *,
    max_tokens: int,
    closing: str | None = None,
) -> TeacherPrompt:
    """The turn's prompt with privileged sections behind the last user message.

    Args:
        sections: none: the student's own prompt, switched off.
        max_tokens: limit of the whole prompt; privileged text is shortened to keep it.
        closing: last line; None: that of `teacher_prompt`.
    """
    if not sections:
        return TeacherPrompt(turn.prompt_ids, False)
    messages, wrapped = _messages(student, prompt_view(turn))

    def count(text: str) -> int:
        return len(encode_text(student.tokenizer, text))

    overhead = max(len(turn.prompt_ids) - sum(count(m["content"]) for m in messages), 0)
    built = build_teacher_prompt(
        messages,
        sections,
        count,
        max_tokens=max_tokens,
        overhead=overhead,
        closing=CLOSING if closing is None else closing,
    )
    if not built.row_on:
        return TeacherPrompt(turn.prompt_ids, False, built.truncated)
    ids = _encode(student, built.messages, wrapped)
    return TeacherPrompt(ids, True, built.truncated)


def edited_prompt(
    student: Student,
    turn: Turn,
    edit: Callable[[str], str],
    *,
    max_tokens: int | None = None,
) -> TeacherPrompt:
    """The turn's prompt with its last user message changed by `edit`.

    Args:
        max_tokens: limit of the whole prompt; a longer one is switched off, as an edit cannot be
            shortened. None: that of the student's prompt.
    """
    messages, wrapped = _messages(student, prompt_view(turn))
    place = max(i for i, message in enumerate(messages) if message["role"] == "user")
    before = messages[place]["content"]
    after = edit(before)
    if after == before:
        return TeacherPrompt(turn.prompt_ids, False)
    messages[place] = {"role": "user", "content": after}
    ids = _encode(student, messages, wrapped)
    if len(ids) > (student.max_prompt_tokens if max_tokens is None else max_tokens):
        return TeacherPrompt(turn.prompt_ids, False, True)
    return TeacherPrompt(ids, True)


def rescored(turn: Turn, prompt: TeacherPrompt, index: int = -1) -> Segment:
    """The turn's own reply behind the teacher's prompt, to be scored at its temperature."""
    return make_segment(prompt.ids, turn.response_ids, turn=index, temperature=turn.temperature)


def _messages(student: Student, view: PromptView) -> tuple[list[dict[str, str]], bool]:
    """Messages, and whether they wrap a plain text."""
    rendered = student.template.render(view)
    if isinstance(rendered, str):
        return [{"role": "user", "content": rendered}], True
    return [{"role": m["role"], "content": m["content"]} for m in rendered], False


def _encode(student: Student, messages: Sequence[dict[str, str]], wrapped: bool) -> tuple[int, ...]:
    if wrapped:
        # A plain prompt ends with a line end, and the reply begins on the next line.
        text = messages[0]["content"]
        return tuple(encode_text(student.tokenizer, text if text.endswith("\n") else text + "\n"))
    return tuple(encode_rendered(list(messages), student.tokenizer, student.template.name))
