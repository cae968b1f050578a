"""From a planner's operators to the commands of a game, by the templates of its text grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from agent_envs.errors import CorruptGame, UnsupportedGame
from oracles.pddl.task import Task

_TOKEN = re.compile(
    r'"""(?:.|\n)*?"""|"[^"]*"|\#[^\n]*|\baction\s+(?P<action>[\w/-]+)|\b(?P<template>template)\s*::'
)
# `{o}`, `{o.name}`, `{o.name or o.id}`, and the list of one thing that a parameter stands for:
# `[{r.name | receptacleatlocation(r:receptacle, lend:location)}]`.
_SLOT = re.compile(
    r"\[\{\s*(\w+)(?:\.name)?\s*\|[^{}\[\]]*\}\]|\{\s*(\w+)(?:\.name(?:\s+or\s+\w+\.id)?)?\s*\}"
)


@lru_cache(maxsize=16)
def read_templates(grammar: str) -> Mapping[str, str]:
    """Action in lower case -> its template, such as ``take {o} from {r}``.

    Raises:
        CorruptGame: the grammar has no template.
    """
    found: dict[str, str] = {}
    action = ""
    waiting = False
    for match in _TOKEN.finditer(grammar):
        if match["action"]:
            action = match["action"].lower()
        elif match["template"]:
            waiting = True
        elif match[0][0] == '"' and waiting:
            found[action] = match[0][1:-1]
            waiting = False
    if not found:
        raise CorruptGame("The text grammar of the game has no template of a command.")
    return MappingProxyType(found)


def spelled(
    task: Task, operator: tuple[str, ...], templates: Mapping[str, str], names: Mapping[str, str]
) -> str:
    """The command that carries out an operator.

    Args:
        task: whose action it is.
        operator: action and arguments, in lower case.
        templates: of `read_templates`.
        names: what the player reads for each object.

    Raises:
        UnsupportedGame: the action has no template, or one that says more than names.
    """
    action, *arguments = operator
    template = templates.get(action)
    if template is None:
        raise UnsupportedGame(f"The text grammar of the game has no command for {action!r}.")
    parameters = task.domain.actions[action].parameters
    values = {
        name.removeprefix("?"): names.get(argument, argument)
        for (name, _), argument in zip(parameters, arguments, strict=True)
    }

    def shown(match: re.Match[str]) -> str:
        name = (match[1] or match[2]).lower()
        if name not in values:
            raise UnsupportedGame(
                f"The template {template!r} of {action!r} names {name!r}, which is no parameter."
            )
        return values[name]

    rest = _SLOT.sub("", template)
    if re.search(r"[{}\[\]#|]", rest):
        raise UnsupportedGame(f"The template {template!r} of {action!r} is not one of plain names.")
    return _SLOT.sub(shown, template).strip()
