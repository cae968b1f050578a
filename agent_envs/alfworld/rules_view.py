"""What an oracle may see of a game that only the original engine can play: rules, facts.

The native engine's `PrivilegedView` has tables that are made from two known pairs of rules and
wording. For any other game there are its own texts, and what is so at the moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_envs.frozen import FrozenDict

if TYPE_CHECKING:
    from agent_envs.alfworld.backends import Running
    from agent_envs.alfworld.original.textworld_session import Point


@dataclass(frozen=True, slots=True)
class RulesView:
    """Rules, true state and budget of a game that the native engine does not know. Immutable."""

    domain: str
    """The PDDL domain."""
    problem: str
    """The PDDL problem, whose ``:init`` is the start of the episode."""
    grammar: str
    """The text grammar, which spells the commands."""
    facts: frozenset[tuple[str, ...]]
    """What is so now: predicates with the ids of their arguments, in lower case."""
    names: FrozenDict
    """What the player reads for each id."""
    steps_left: int | None


def rules_view(game: Running, state: Point, steps_left: int | None) -> RulesView:
    """The view of a state of the original engine.

    Args:
        game: what `backends.TextWorldEngine.load` gave.
        state: a state of it; the engine goes there if it is elsewhere.
        steps_left: commands that the episode still allows; None: no limit.
    """
    session, payload = game.session, game.payload
    facts = session.facts(state)
    return RulesView(
        domain=payload["pddl_domain"],
        problem=payload["pddl_problem"],
        grammar=payload["grammar"],
        # the engine's own notes of what is not so any more are no facts of the rules
        facts=frozenset(fact for fact in facts if not fact[0].startswith("not_")),
        names=FrozenDict(session.names()),
        steps_left=steps_left,
    )
