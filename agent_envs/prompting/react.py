"""Replies that think aloud before they act (ReAct, arXiv:2210.03629), in the forms models use.

``> think: ...`` and ``> go to shelf 1``, ``Thought: ...`` and ``Action: go to shelf 1`` (numbered
or not), ``think[...]`` and ``Action: think[...]``. What is left after these marks goes through
`parse_plain`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agent_envs.prompting.parsing import ParsedReply, parse_plain

__all__ = ["is_thought", "parse_react"]

_FLAGS = re.IGNORECASE | re.ASCII
_THOUGHT = re.compile(r"[ \t>*]*(?:thought|think)[ \t]*\d*[ \t]*(?:\*\*)?[:\[]", _FLAGS)
_ACTION = re.compile(r"[ \t>*]*(?:action|act)[ \t]*\d*[ \t]*(?:\*\*)?:(?:\*\*)?", _FLAGS)
_OBSERVATION = re.compile(r"[ \t>*]*observation[ \t]*\d*[ \t]*(?:\*\*)?:", _FLAGS)


def parse_react(reply: str) -> ParsedReply:
    """The first command of a reply; thoughts are skipped, and what follows it is not read.

    Lines that begin with ``Action:`` are commands, and where there is one only they are. A line
    that begins with ``Observation:`` ends the reply: from there on the model makes things up. No
    command left: malformed, reason ``no_action``.

    >>> parse_react("Thought 1: the shelf may hold it\\nAction 1: go to shelf 1").command
    'go to shelf 1'
    >>> parse_react("> think: the shelf may hold it\\n> go to shelf 1\\nYou arrive").command
    'go to shelf 1'
    """
    # Every mark is replaced by as many blanks, so that spans stay those of the reply.
    lines: list[str] = []
    named = False
    for line in reply.splitlines(keepends=True):
        if _OBSERVATION.match(line):
            break
        if _THOUGHT.match(line):
            line = _blank(line)
        elif (mark := _ACTION.match(line)) is not None:
            if not named:
                lines = [_blank(earlier) for earlier in lines]
            named = True
            line = _blank(line) if _thinks(line) else " " * mark.end() + line[mark.end() :]
        lines.append(line)
    text = "".join(lines)
    parsed = parse_plain(text)
    return parsed if parsed.command else replace(parsed, format_valid=False, reason="no_action")


def is_thought(reply: str) -> bool:
    """Whether a reply is nothing but thoughts."""
    lines = [line for line in reply.splitlines() if line.strip()]
    return bool(lines) and parse_react(reply).reason == "no_action" and _thinks(lines[0])


def _thinks(line: str) -> bool:
    """Whether a line is a thought, named an action or not."""
    mark = _ACTION.match(line)
    return _THOUGHT.match(line, 0 if mark is None else mark.end()) is not None


def _blank(line: str) -> str:
    body = line.rstrip("\r\n")
    return " " * len(body) + line[len(body) :]
