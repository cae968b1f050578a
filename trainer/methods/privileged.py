"""Prompts for teachers: the student's own prompt of a recorded turn, with something added.

Everything is built from the turn's record, so a teacher's prompt differs from the student's by what
was added and by nothing else; with nothing added it is the same token for token.

In a conversation (`prompt.context: chat`) the addition goes into the message before the scored
reply or, where it is about the whole episode, into the first one. Replies keep their sampled ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_envs.prompting import ChatTemplate, Message, PromptView
from trainer.auxiliary.feedback_context import Section
from trainer.auxiliary.teacher_prompt import CLOSING, EPISODE_CLOSING, build_teacher_prompt
from trainer.rollouts.chat import NOTHING_SAID, Conversation
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import encode_rendered

__all__ = [
    "Conversations",
    "TeacherPrompt",
    "edited_prompt",
    "prompt_view",
    "rescored",
    "with_sections",
]

Messages = list[dict[str, str]]


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


class Conversations:
    """What was said before each of M recorded turns; in `window` context always nothing.

    Asked in the order of a trajectory every reply is read once: the last answer is kept.

    Args:
        turns: of one iteration; (uid, tid, t) is unique there.
    """

    def __init__(self, student: Student, turns: Sequence[Turn]) -> None:
        self._student = student
        self._turns = turns
        self._places: dict[tuple[str, str, int], int] = {}
        if student.context == "chat":
            self._places = {(turn.uid, turn.tid, turn.t): m for m, turn in enumerate(turns)}
        self._last: tuple[Turn, Conversation] | None = None

    def before(self, m: int) -> Conversation:
        """The conversation that the prompt of turn `m` goes on from.

        Raises:
            ValueError: an earlier turn of the trajectory is missing.
        """
        turn = self._turns[m]
        if not self._places or turn.t == 0:
            return NOTHING_SAID
        start, said = 0, NOTHING_SAID
        if self._last is not None:
            last, so_far = self._last
            if (last.uid, last.tid) == (turn.uid, turn.tid) and last.t < turn.t:
                start, said = last.t + 1, so_far
        for t in range(start, turn.t):
            place = self._places.get((turn.uid, turn.tid, t))
            if place is None:
                raise ValueError(
                    f"Turn {turn.t} of trajectory {turn.tid!r} in group {turn.uid!r} belongs to a "
                    f"conversation (prompt.context=chat), and its turn {t} is missing. Give whole "
                    "trajectories."
                )
            earlier = self._turns[place]
            said = self._student.answered(
                said, prompt_view(earlier), earlier.prompt_ids, earlier.response_ids
            )
            self._last = earlier, said
        return said


def with_sections(
    student: Student,
    turn: Turn,
    sections: Sequence[Section],
    *,
    max_tokens: int,
    closing: str | None = None,
    said: Conversation = NOTHING_SAID,
    first: bool = False,
) -> TeacherPrompt:
    """The turn's prompt with privileged sections behind a user message.

    Args:
        sections: none: the student's own prompt, switched off.
        max_tokens: limit of the whole prompt; privileged text is shortened to keep it.
        closing: last line; None: that of `teacher_prompt`.
        said: in chat, what was said before, see `Conversations`.
        first: in chat, the sections stand behind the first message, not the last one.
    """
    if not sections:
        return TeacherPrompt(turn.prompt_ids, False)
    messages, encode = _prompt_of(student, turn, said, first)

    def count(text: str) -> int:
        return len(encode_rendered(text, student.tokenizer, student.template.name))

    if closing is None:
        closing = EPISODE_CLOSING if first and student.context == "chat" else CLOSING
    overhead = max(len(turn.prompt_ids) - sum(count(m["content"]) for m in messages), 0)
    while True:
        built = build_teacher_prompt(
            messages, sections, count, max_tokens=max_tokens, overhead=overhead, closing=closing
        )
        if not built.row_on:
            return TeacherPrompt(turn.prompt_ids, False, built.truncated)
        ids = encode(built.messages)
        if len(ids) <= max_tokens:
            return TeacherPrompt(ids, True, built.truncated)
        # Where texts meet, tokens may be others than in the parts that were counted.
        overhead += len(ids) - max_tokens


def edited_prompt(
    student: Student,
    turn: Turn,
    edit: Callable[[str], str],
    *,
    max_tokens: int | None = None,
    said: Conversation = NOTHING_SAID,
    first: bool = False,
) -> TeacherPrompt:
    """The turn's prompt with a user message changed by `edit`: the last, or in chat the first.

    Args:
        max_tokens: limit of the whole prompt; a longer one is switched off, as an edit cannot be
            shortened. None: that of the student's prompt.
        said, first: see `with_sections`.
    """
    messages, encode = _prompt_of(student, turn, said, first)
    place = max(i for i, message in enumerate(messages) if message["role"] == "user")
    before = messages[place]["content"]
    after = edit(before)
    if after == before:
        return TeacherPrompt(turn.prompt_ids, False)
    messages[place] = {"role": "user", "content": after}
    ids = encode(messages)
    if len(ids) > (student.max_prompt_tokens if max_tokens is None else max_tokens):
        return TeacherPrompt(turn.prompt_ids, False, True)
    return TeacherPrompt(ids, True)


def rescored(turn: Turn, prompt: TeacherPrompt, index: int = -1) -> Segment:
    """The turn's own reply behind the teacher's prompt, to be scored at its temperature."""
    return make_segment(prompt.ids, turn.response_ids, turn=index, temperature=turn.temperature)


def _prompt_of(
    student: Student, turn: Turn, said: Conversation, first: bool
) -> tuple[Messages, Callable[[Messages], tuple[int, ...]]]:
    """Messages of which one may be changed, and what makes the whole prompt's ids of them.

    In chat it is the one message that may be changed, and the rest stands in `said`.
    """
    template, talk = student.template, student.format
    if talk is not None:
        assert isinstance(template, ChatTemplate)
        if len(said.messages) != 2 * turn.t:
            raise ValueError(
                f"The prompt of turn {turn.t} of a conversation needs the {turn.t} turns before "
                f"it, found {len(said.messages) // 2}. Give `said`, see `Conversations`."
            )
        own = template.message(prompt_view(turn))
        opening = first and bool(said.messages)
        shown = said.messages[0] if opening else own

        def encode(messages: Messages) -> tuple[int, ...]:
            content = messages[0]["content"].strip()
            if opening:
                return talk.prompt(talk.retold(said, content), own)
            changed: Message = {"role": "user", "content": content}
            return talk.prompt(said, changed)

        return [{"role": "user", "content": shown["content"]}], encode
    rendered = template.render(prompt_view(turn))
    if isinstance(rendered, str):
        return [{"role": "user", "content": rendered}], lambda found: _plain(student, found)
    messages = [{"role": m["role"], "content": m["content"]} for m in rendered]
    return messages, lambda found: tuple(encode_rendered(found, student.tokenizer, template.name))


def _plain(student: Student, messages: Messages) -> tuple[int, ...]:
    """Ids of a plain text; it ends with a line end, and the reply begins on the next line."""
    text = messages[0]["content"]
    text = text if text.endswith("\n") else text + "\n"
    return tuple(encode_rendered(text, student.tokenizer, student.template.name))
