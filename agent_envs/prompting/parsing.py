"""From a model's reply to the command that is sent to the env.

The tagged form (``<think>...</think><action>CMD</action>``) follows the projection of
the published agent runs (verl-agent; GiGPO, arXiv:2505.10978), so that the share of
malformed replies and its penalty mean the same here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ALFWORLD_TAIL = 30
WEBSHOP_TAIL = 20

# ASCII only: full Unicode case folding would also accept a dotless or dotted i.
_OPEN = re.compile(r"<action>", re.IGNORECASE | re.ASCII)
_CLOSE = re.compile(r"</action>", re.IGNORECASE | re.ASCII)
_CJK = re.compile("[\u4e00-\u9fff]")
_BLOCK = re.compile(r"<action\b[^>]*>(.*?)</action>", re.IGNORECASE | re.ASCII | re.DOTALL)
_UNCLOSED = re.compile(r"<action\b[^>]*>(.+)\Z", re.IGNORECASE | re.ASCII | re.DOTALL)
_CALL = re.compile(r"\b(?:search|click)\[[^\]]*\]", re.IGNORECASE | re.ASCII)
_THOUGHT = re.compile(r"think\s*:", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply, split into what is executed and whether its form was right.

    Attributes:
        command: what is sent to the env, lower-cased; may be empty.
        format_valid: the form of the *reply*. Says nothing on whether the env
            accepts the command.
        reason: why the form is wrong: ``missing_action_tag``, ``missing_think_tag``,
            ``cjk_character`` or ``no_action``; None if the form is right.
        command_span: characters of the reply that hold the command, end exclusive;
            None if there is no tagged command or it is empty.
    """

    command: str
    format_valid: bool
    reason: str | None = None
    command_span: tuple[int, int] | None = None


def parse_tagged(reply: str, tail: int = ALFWORLD_TAIL) -> ParsedReply:
    """Project a tagged reply (rule of the published runs).

    The text from the first ``<action>`` to the first ``</action>`` is stripped and
    lower-cased. A missing tag sends the last `tail` characters and is malformed. So is
    a reply without ``<think>`` or ``</think>`` in exactly that spelling, in any order,
    or with a character in U+4E00..U+9FFF. An empty command, or a closing tag before the
    opening one, sends an empty command and is well-formed: the env refuses it.
    """
    opening, closing = _OPEN.search(reply), _CLOSE.search(reply)
    if opening is None or closing is None:
        return ParsedReply(reply.lower()[-tail:] if tail > 0 else "", False, "missing_action_tag")
    start, end = _stripped(reply, opening.end(), closing.start())
    command = reply[start:end].lower()
    span = (start, end) if start < end else None
    if "<think>" not in reply or "</think>" not in reply:
        return ParsedReply(command, False, "missing_think_tag", span)
    if _CJK.search(reply):
        return ParsedReply(command, False, "cjk_character", span)
    return ParsedReply(command, True, None, span)


def project(text: str, tail: int = ALFWORLD_TAIL) -> tuple[str, bool]:
    """`parse_tagged` as the pair (command, format_valid)."""
    parsed = parse_tagged(text, tail)
    return parsed.command, parsed.format_valid


def parse_plain(reply: str) -> ParsedReply:
    """Read a command from an untagged, ReAct-like reply (arXiv:2210.03629).

    Leading ``>`` marks are dropped and ``think:`` lines are skipped; the first line
    left is the command. If any line carries the mark, only marked lines are commands,
    so unmarked chatter is never sent. No command left: malformed, reason ``no_action``.

    >>> parse_plain("> think: the shelf may hold it\\n> go to shelf 1").command
    'go to shelf 1'
    """
    lines: list[tuple[bool, int, int]] = []
    offset = 0
    for raw in reply.splitlines(keepends=True):
        start, end = _stripped(reply, offset, offset + len(raw))
        offset += len(raw)
        marked = False
        while start < end and reply[start] == ">":
            marked = True
            start, end = _stripped(reply, start + 1, end)
        if start < end:
            lines.append((marked, start, end))
    only_marked = any(marked for marked, _, _ in lines)
    for marked, start, end in lines:
        if (only_marked and not marked) or _THOUGHT.match(reply, start):
            continue
        return ParsedReply(reply[start:end].lower(), True, None, (start, end))
    return ParsedReply("", False, "no_action")


def action_spans(
    text: str, which: Literal["executed", "all"] = "executed"
) -> tuple[tuple[int, int], ...]:
    """Character spans of the action in a reply, not stripped, end exclusive.

    Every ``<action ...>(...)</action>``; if there is none, an unclosed ``<action>`` to
    the end; if there is none, ``search[...]`` / ``click[...]``. ``executed`` keeps only
    the first, since only that one reaches the env. An empty block gives no span: a
    fall-through to the unclosed rule would train the closing tag as an action.
    """
    blocks = list(_BLOCK.finditer(text))
    if blocks:
        spans = [match.span(1) for match in blocks]
    elif (unclosed := _UNCLOSED.search(text)) is not None:
        spans = [unclosed.span(1)]
    else:
        spans = [match.span() for match in _CALL.finditer(text)]
    if which == "executed":
        spans = spans[:1]
    return tuple((start, end) for start, end in spans if start < end)


def command_verb(command: str) -> str:
    """The verb of a command: its first word, or what stands before ``[``.

    >>> command_verb("go to shelf 1"), command_verb("search[red shoes]")
    ('go', 'search')
    """
    head = command.split("[", 1)[0].split()
    return head[0].lower() if head else ""


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Narrow [start, end) to what `str.strip` would keep."""
    if end <= start:
        return start, start
    piece = text[start:end]
    lead = len(piece) - len(piece.lstrip())
    return start + lead, start + max(lead, len(piece.rstrip()))
