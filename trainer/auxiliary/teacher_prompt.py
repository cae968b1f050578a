"""The teacher's prompt: the student's, with privileged sections behind the last user message.

    <last user message>
    (blank line)
    <title>
    <text>                      one or more sections, blank lines between them
    (blank line)
    <closing instruction>

Other messages stay as they are, and the student's reply follows the same generation header.

A prompt that is too long loses privileged text and nothing else. Public code cuts the end of the
rendered prompt, which is the instruction and the assistant's header, so long sources were also
tested with a broken prompt. Without sections the messages are exactly the student's: teacher and
student then agree, and nothing is reweighted.

Source: `specs/aux_objectives.md`, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.auxiliary.feedback_context import Section

CLOSING = "Now solve the current step of the task correctly."
EPISODE_CLOSING = "Now solve the task correctly, one step at a time."
"""Of sections that stand at the beginning of a conversation and are about all of it."""
ELLIPSIS = " [...]"
MIN_PRIVILEGED = 16


@dataclass(frozen=True, slots=True)
class TeacherPrompt:
    """Messages for the teacher, and what became of the privileged text.

    Attributes:
        messages: the prompt.
        row_on: the row mask; False where the messages are the student's own.
        offered: privileged tokens before shortening, without titles.
        kept: those that are in the prompt.
        truncated: whether any were cut; log the share of rows.
    """

    messages: list[dict[str, str]]
    row_on: bool
    offered: int
    kept: int
    truncated: bool

    @property
    def dropped(self) -> int:
        """Privileged tokens that are not in the prompt."""
        return self.offered - self.kept


def build_teacher_prompt(
    messages: Sequence[dict[str, str]],
    sections: Sequence[Section],
    count_tokens: Callable[[str], int],
    *,
    max_tokens: int | None = None,
    overhead: int = 0,
    min_privileged: int = MIN_PRIVILEGED,
    closing: str = CLOSING,
) -> TeacherPrompt:
    """Place the sections, and shorten them to fit.

    All texts are cut to one common number of characters, the largest that fits, so the longest
    loses first and the beginning, which is nearest to the step, stays. A cut text ends in
    `ELLIPSIS`. If fewer than `min_privileged` tokens survive the cut, the row is switched off and
    keeps the student's messages. A context that is short by itself is never switched off.

    Args:
        messages: the student's prompt, with "role" and "content".
        sections: what to add, in order; blank texts are left out.
        count_tokens: tokens of a text.
        max_tokens: budget for the contents of all messages plus `overhead`. None: no limit.
        overhead: tokens of the chat template around the contents, generation header included.
        min_privileged: fewest privileged tokens worth a teacher after a cut.
        closing: the last line.

    Returns:
        TeacherPrompt; `messages` is a new list, the input is not changed.

    Raises:
        ValueError: there is no user message, or a number is negative.
    """
    if min_privileged < 0 or overhead < 0 or (max_tokens is not None and max_tokens < 0):
        raise ValueError(
            f"max_tokens={max_tokens}, overhead={overhead} and min_privileged={min_privileged} "
            "must not be negative."
        )
    place = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)
    if place is None:
        roles = [message["role"] for message in messages]
        raise ValueError(f"Expected a user message to add the sections to, found roles {roles}.")
    plain = [dict(message) for message in messages]
    given = [section for section in sections if section.text.strip()]
    offered = sum(count_tokens(section.text) for section in given)
    if not given:
        return TeacherPrompt(plain, False, 0, 0, False)

    others = overhead + sum(
        count_tokens(message["content"]) for i, message in enumerate(plain) if i != place
    )

    def content(limit: int) -> str:
        parts = [f"{title}\n{_cut(text, limit)}" for title, text in given]
        return "\n\n".join([plain[place]["content"], *parts, closing])

    def fits(limit: int) -> bool:
        return max_tokens is None or others + count_tokens(content(limit)) <= max_tokens

    longest = max(len(section.text) for section in given)
    limit = longest if fits(longest) else _largest(fits, longest)
    kept = sum(count_tokens(section.text[:limit]) for section in given)
    truncated = limit < longest
    if truncated and (limit == 0 or kept < min_privileged):
        return TeacherPrompt(plain, False, offered, 0, True)
    plain[place]["content"] = content(limit)
    return TeacherPrompt(plain, True, offered, kept, truncated)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rstrip() + ELLIPSIS


def _largest(fits: Callable[[int], bool], above: int) -> int:
    """Largest limit below `above` that a bisection finds to fit; 0 if none does."""
    low = 0
    while above - low > 1:
        middle = (low + above) // 2
        if fits(middle):
            low = middle
        else:
            above = middle
    return low
