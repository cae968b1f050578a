"""Deterministic text models that write skills as an analyser would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

Chat = list[dict[str, str]]
TextFunction = Callable[[Chat], str]

CONFIG = {"model": "tests.trainer.methods.toy_analysers:outcome"}


def told(chat: Chat, key: str) -> str:
    """What the chat says of `Task` or `Outcome`."""
    found = re.search(rf"^{key}: (.*)$", chat[-1]["content"], re.MULTILINE)
    assert found is not None
    return found[1]


def skill_of(task: str, outcome: str) -> str:
    return f"skill after a {outcome}: take the right thing to its place, {task}"


def outcome() -> TextFunction:
    """One skill, from the task and its outcome."""
    return lambda chat: json.dumps(
        {"episode_skill": skill_of(told(chat, "Task"), told(chat, "Outcome"))}
    )


def steps() -> TextFunction:
    """The same with a skill for the second step."""

    def answer(chat: Chat) -> str:
        own = {"step": 1, "skill": "at this step open the closed thing first"}
        return json.dumps({**json.loads(outcome()(chat)), "step_skills": [own]})

    return answer


def failures_only() -> TextFunction:
    """No usable skill after a success."""
    return lambda chat: outcome()(chat) if told(chat, "Outcome") == "failure" else "well done"


def second_try() -> TextFunction:
    """No usable skill before it is told what was wrong."""
    return lambda chat: outcome()(chat) if "earlier answer" in chat[-1]["content"] else "hm"


def useless() -> TextFunction:
    return lambda chat: '{"episode_skill": "..."}'


def not_a_function() -> int:
    return 3
