"""Which tokens of a reply are its action.

Two rules. "executed": what the environment really runs, the text between the first opening and
the first closing tag (`agent_envs.prompting.parse_tagged`). "all": every block, as public code
masks; it also rewards and blames blocks that were never run. Where a reply has no complete pair
of tags both fall back to `agent_envs.prompting.action_spans`: an unclosed block, then
`search[...]` / `click[...]`.

For a reply of the student's own template `trainer.rollouts.tokens.command_mask` asks that
template; the functions here work on any text, whatever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agent_envs.prompting import action_spans as spans_of_blocks
from trainer.rollouts.tokens import Span, span_mask

Which = Literal["executed", "all"]

EMPTY_ACTION = "(empty action)"

# As the projection reads them: no attributes. Blocks with attributes are found by the fallback.
_OPEN = re.compile(r"<action>", re.IGNORECASE | re.ASCII)
_CLOSE = re.compile(r"</action>", re.IGNORECASE | re.ASCII)
_ANY_OPEN = re.compile(r"<action\b", re.IGNORECASE | re.ASCII)
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"


def action_spans(text: str, which: Which = "executed") -> tuple[Span, ...]:
    """Character spans of the action, end exclusive, not stripped.

    Args:
        text: the reply.
        which: "executed" gives at most one span, and none if what is executed is blank (an empty
            block, or a closing tag before the first opening one); "all" gives every block.

    Returns:
        Spans in order; none where no action can be found.

    Raises:
        ValueError: unknown rule.
    """
    if which == "all":
        return spans_of_blocks(text, "all")
    if which != "executed":
        raise ValueError(f"which must be 'executed' or 'all', found {which!r}.")
    opening, closing = _OPEN.search(text), _CLOSE.search(text)
    if opening is None or closing is None:
        return spans_of_blocks(text, "executed")
    start, end = opening.end(), closing.start()
    return ((start, end),) if text[start:end].strip() else ()


def action_token_mask(
    text: str, offsets: Sequence[Span], which: Which = "executed"
) -> tuple[bool, ...]:
    """Tokens that overlap the action.

    A token that straddles a tag's border counts; a token without characters never does.

    Args:
        text: the reply.
        offsets: characters of each token, from a fast tokenizer or
            `trainer.rollouts.tokens.prefix_offsets`.
        which: see `action_spans`.

    Returns:
        One bool a token.
    """
    return span_mask(offsets, action_spans(text, which))


def norm_action(text: str) -> str:
    """The action of a reply in a form in which equal actions are equal strings.

    Lower-cased, runs of white space as one blank. What is executed, if both tags are there; else
    the action found outside the thoughts; else all that stands outside them. Nothing left:
    `EMPTY_ACTION`.

    >>> norm_action("<think>a</think> <action> Go  TO\\nFridge 1 </action>")
    'go to fridge 1'
    """
    tagged = _OPEN.search(text) and _CLOSE.search(text)
    body = text if tagged else remove_thoughts(text)
    spans = action_spans(body)
    if spans:
        body = body[spans[0][0] : spans[0][1]]
    elif tagged:
        body = ""
    return " ".join(body.split()).lower() or EMPTY_ACTION


def remove_thoughts(text: str) -> str:
    """A reply without its `<think>...</think>` blocks, stripped.

    Prompts of reasoning models may open the block themselves, so what stands before a closing tag
    without an opening one is a thought too, unless it holds an action. A block that is never
    closed ends where an action begins, otherwise with the reply.
    """
    text = _THOUGHT.sub("", text)
    before, closing, after = text.rpartition(_THINK_CLOSE)
    if closing:
        text = before.replace(_THINK_CLOSE, "") + after if _ANY_OPEN.search(before) else after
    start = text.find(_THINK_OPEN)
    if start >= 0:
        action = _ANY_OPEN.search(text, start)
        text = text[:start] + (text[action.start() :] if action else "")
    return text.strip()
