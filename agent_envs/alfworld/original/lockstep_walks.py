"""Which commands a comparison of engines tries, and what it met on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from agent_envs.alfworld.engine import admissible
from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State

HOSTILE = {
    "empty": "",
    "newline": "\n",
    "two commands": "look then inventory",
    "two lines": "look\ninventory",
    "5,000 characters": "x" * 5000,
    "emoji": "look \N{SLIGHTLY SMILING FACE}",
    "NUL byte": "look\0",
    "half of a character": "\ud800",
    "upper case": "LOOK",
    "two blanks": "go  to",
    "braces": "{o} %s {r.name}",
}
"""Texts that are no command of any game, by what is odd about them."""

Planner = Callable[[Game, State], Sequence[str]]
"""The commands of a plan from a state; empty where there is none."""

_IDLE = ("help", "inventory", "look", "examine")


class MixedWalk:
    """Seeded choice of commands: planned ones, admissible ones, and ones that do not apply.

    Of the admissible commands first a verb is drawn, then one of its commands, since most lists
    consist of ``go to`` for the greater part.

    Args:
        game: the game walked through.
        seed: the same seed gives the same walk.
        planner: where plans come from; None for none.
        first: commands to begin with.
    """

    def __init__(
        self, game: Game, seed: int | str, planner: Planner | None = None, first: Sequence[str] = ()
    ) -> None:
        self._game, self._rng, self._planner = game, Random(f"{seed}"), planner
        self._first: Iterator[str] = iter(first)

    def __call__(self, state: State) -> str:
        """The next command."""
        for command in self._first:
            return command
        rng, draw = self._rng, self._rng.random()
        if draw < 0.25:
            return self._invalid()
        if draw < 0.5 and self._planner is not None:
            plan = self._planner(self._game, state)
            if plan:
                return plan[0]
        by_verb: dict[str, list[str]] = {}
        for command in admissible(self._game, state):
            by_verb.setdefault(command.partition(" ")[0], []).append(command)
        verbs = list(by_verb)
        active = [verb for verb in verbs if verb not in _IDLE]
        return rng.choice(by_verb[rng.choice(active if active and draw < 0.9 else verbs)])

    def _invalid(self) -> str:
        """Real names in commands that mostly do not apply here, commands of the other
        generation, or noise."""
        game, rng = self._game, self._rng
        kind = rng.random()
        if kind < 0.25 or not game.recs or not game.objs:
            return rng.choice(list(HOSTILE.values()))
        obj, rec = rng.choice(game.objs), rng.choice(game.recs)
        if kind < 0.4:
            put, joint = rng.choice(list(GENERATIONS.values())).put
            return f"{put} {obj} {joint} {rec}"
        verb = rng.choice(("take", "heat", "cool", "clean", "slice"))
        second = rng.choice(game.objs) if verb == "slice" else rec
        joint = "from" if verb == "take" else "with"
        return rng.choice(
            (
                f"{verb} {obj} {joint} {second}",
                f"{rng.choice(('go to', 'open', 'close', 'examine'))} {rec}",
                f"{rng.choice(('use', 'examine', 'go to'))} {obj}",
                f"go to loc {rng.randrange(len(game.locs))}",
            )
        )


def situations(
    game: Game, before: State, command: str, after: State, accepted: bool
) -> Iterator[str]:
    """Names for what a step meets: the verbs that worked, and the corners of the rules.

    A refused command is ``"refused"`` (and ``"hostile: ..."`` for those of `HOSTILE`), an accepted
    one its first word. The others describe the place where the command was given and the hands:
    ``"closed receptacle"``, ``"open receptacle"``, ``"shared location"``, ``"object in two
    receptacles"``, ``"dead end"`` (hands full of what no receptacle takes), ``"beside"`` (something
    was moved between receptacles of one spot), ``"clean in hand"`` (hot, cool, sliced),
    ``"won"`` and ``"no longer won"``.
    """
    if accepted:
        yield command.split()[0]
    else:
        yield "refused"
        yield from (f"hostile: {name}" for name, text in HOSTILE.items() if text == command)
    recs, loc, held = game.recs_at[before.loc], before.loc, before.held
    doors = [before.opened >> rec & 1 for rec in recs if game.openable >> rec & 1]
    if 0 in doors:
        yield "closed receptacle"
    if 1 in doors:
        yield "open receptacle"
    if len(recs) > 1:
        yield "shared location"
    seen = 1 << held if held >= 0 else 0
    twice = 0
    for mask in before.contents:
        twice |= seen & mask
        seen |= mask
    if any(before.contents[rec] & twice for rec in recs) or (held >= 0 and twice >> held & 1):
        yield "object in two receptacles"
    if any(before.removed[rec] & before.at[loc] for rec in recs):
        yield "beside"
    if held >= 0:
        if not any(mask >> held & 1 for mask in game.can_hold):
            yield "dead end"
        for name in ("clean", "hot", "cool", "sliced"):
            if getattr(before, name) >> held & 1:
                yield f"{name} in hand"
    if won(game, after):
        yield "won"
    elif won(game, before):
        yield "no longer won"
