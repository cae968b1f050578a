"""An oracle that is a language model: prompt, reply, command.

It acts on what the student sees and on nothing else, with the prompt templates of the policy. The
model is injected: any function from chat messages to text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_envs.alfworld import engine
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.prompting import ParsedReply, PromptTemplate, PromptView
from agent_envs.webshop.actions import SEARCH_TEMPLATE
from agent_envs.webshop.engine import engine_of
from agent_envs.webshop.model import Page, PrivilegedShop
from oracles.base import Decision, History, HistoryItem, Message, PlanStatus, TextModel

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_TAG = re.compile(r"think>|action>|<action", re.IGNORECASE)
AGAIN = "That reply cannot be used: {error}. Reply again, in the form that was asked for."


@dataclass(frozen=True, slots=True)
class Seen:
    """What the student is told beside the observation. Holds nothing privileged."""

    goal: str
    admissible: tuple[str, ...] = ()
    action_templates: tuple[str, ...] = ()


Sees = Callable[[Any, History, str], Seen | None]
"""(view, history, observation) -> what the student is told; None if it cannot tell."""


def seen_in_view(view: Any, history: History, observation: str) -> Seen | None:
    """What ``info`` tells the student in ALFWorld and in WebShop, and nothing else of the view."""
    if isinstance(view, PrivilegedView):
        return Seen(view.game.task_sentence, engine.admissible(view.game, view.state))
    if isinstance(view, PrivilegedShop):
        shop: Any = view.shop
        rules: Any = view.rules
        shown = (engine_of(shop) if rules is None else engine_of(shop, rules)).view(view.session)
        templates = (SEARCH_TEMPLATE,) if view.session.page == Page.INDEX else ()
        return Seen(view.goal.instruction, shown.commands, templates)
    return None


class TextModelOracle:
    """Asks a language model for the next command.

    A reply that cannot be parsed, or whose command is not possible, is shown to the model with the
    error, up to `retries` times. After that the status is TIMEOUT: the budget of replies ran out,
    which says nothing about the state (UNSUPPORTED would say that asking again is in vain, and
    another sample may well be fine). UNSUPPORTED: it is not known what the student is told.

    The thought of a reply comes with the decision, for a student to learn: the model saw only what
    the student sees. Its randomness is its own affair; the oracle has none.

    Args:
        model: chat messages -> reply.
        template: makes the prompt and parses the reply; `agent_envs.prompting.get_template`.
        sees: what the student is told beside the observation. The default reads the task, the
            admissible commands and the templates out of the view: the protocol has no other way to
            them, and this alone is why the oracle counts as privileged.
        privileged: False for a `sees` that needs no view, and then gets None.
        retries: further replies after one that cannot be used.
        thoughts: whether decisions carry the thoughts.
    """

    def __init__(
        self,
        model: TextModel,
        template: PromptTemplate,
        *,
        sees: Sees = seen_in_view,
        privileged: bool = True,
        retries: int = 2,
        thoughts: bool = True,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries={retries} must be 0 or more")
        self.model = model
        self.template = template
        self.sees = sees
        self.privileged = privileged
        self.retries = retries
        self.thoughts = thoughts

    def start(self, view: Any, history: History) -> History:
        """The student's history goes on."""
        return history

    def act(self, state: History, view: Any, observation: str) -> tuple[Decision, History]:
        """One command, or TIMEOUT."""
        seen = self.sees(view, state, observation)
        if seen is None:
            return Decision(PlanStatus.UNSUPPORTED, None, untold(view)), state
        chat = prompt(self.template, seen, state, observation)
        decision = ask(self.model, self.template, chat, seen, self.retries, self.thoughts)
        return decision, longer(state, observation, decision)


def untold(view: Any) -> str:
    """Why `sees` gave nothing, for `Decision.detail`."""
    return (
        f"what the student is told cannot be read from a {type(view).__name__}; give the oracle a "
        "function `sees`"
    )


def prompt(
    template: PromptTemplate, seen: Seen, history: History, observation: str
) -> list[Message]:
    """The student's prompt as chat messages; a plain text is one message of the user."""
    rendered = template.render(
        PromptView(
            goal=seen.goal,
            observation=observation,
            admissible=seen.admissible,
            history=tuple((item.observation, item.action) for item in history),
            step=len(history),
            action_templates=seen.action_templates,
        )
    )
    if isinstance(rendered, str):
        return [Message(role="user", content=rendered)]
    return [Message(role=message["role"], content=message["content"]) for message in rendered]


def ask(
    model: TextModel,
    template: PromptTemplate,
    chat: Sequence[Message],
    seen: Seen,
    retries: int,
    thoughts: bool,
) -> Decision:
    """Ask until a reply can be used, `retries` + 1 times at most."""
    messages, error = list(chat), ""
    for _ in range(retries + 1):
        reply = model([Message(role=m["role"], content=m["content"]) for m in messages])
        parsed = template.parse(reply)
        command, error = _command(parsed, seen)
        if command is not None:
            thought = thought_of(reply) if thoughts else None
            return Decision(PlanStatus.FOUND, command, thought=thought)
        messages += [
            Message(role="assistant", content=reply),
            Message(role="user", content=AGAIN.format(error=error)),
        ]
    detail = f"none of {retries + 1} replies could be used; the last one: {error}"
    return Decision(PlanStatus.TIMEOUT, None, detail)


def longer(history: History, observation: str, decision: Decision) -> History:
    """The history after the decision; as it was where there is no command."""
    if decision.status is not PlanStatus.FOUND or decision.action is None:
        return history
    return (*history, HistoryItem(observation, decision.action, True))


def thought_of(reply: str) -> str | None:
    """The text between the first ``<think>`` and ``</think>``; None where it is empty.

    None as well where it holds a tag: repeated in a student's reply it would send another command.

    >>> thought_of("<think> the shelf first </think><action>go to shelf 1</action>")
    'the shelf first'
    """
    match = _THOUGHT.search(reply)
    if match is None or _TAG.search(match[1]):
        return None
    return match[1].strip() or None


def _command(parsed: ParsedReply, seen: Seen) -> tuple[str | None, str]:
    """The command of a reply as the env lists it, or None and what is wrong.

    Where nothing is known of what is possible, only the form counts.
    """
    command = parsed.command
    if not parsed.format_valid:
        return None, f"its form is wrong ({parsed.reason})"
    if not command.strip():
        return None, "it has no command"
    listed = {action.lower(): action for action in reversed(seen.admissible)}
    if command.lower() in listed:
        return listed[command.lower()], ""
    if any(_fits(command, template) for template in seen.action_templates):
        return command, ""
    if not seen.admissible and not seen.action_templates:
        return command, ""
    return None, f"{command!r} is none of the possible commands"


def _fits(command: str, template: str) -> bool:
    """Whether the command is the template with a text in place of each ``<...>``."""
    parts = re.split(r"<[^<>]*>", template)
    return re.fullmatch(".+".join(map(re.escape, parts)), command, re.DOTALL) is not None
