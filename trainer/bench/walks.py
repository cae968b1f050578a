"""Seeded walks that keep reaching states not seen before, for measuring and comparing engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State

_IDLE = ("help", "inventory", "look", "examine ")


@dataclass(frozen=True, slots=True)
class Walk:
    """A list of admissible commands and how much new ground it covers."""

    commands: tuple[str, ...]
    unseen: int
    """How many of the commands lead to a state that the walk had not visited."""


def seeded_walk(game: Game, length: int, rng: np.random.Generator) -> Walk:
    """A walk of `length` admissible commands from the start of `game`.

    Each step draws among the commands whose result the walk has not visited yet, first a verb,
    then a command of that verb, so that taking, opening and moving are as frequent as going
    around (drawing among all commands would mostly go around and come back). Where every command
    leads to a known state, it draws among all that change something. It never wins, which would
    end the episode.
    """
    state: State = game.start
    seen = {state}
    commands: list[str] = []
    unseen = 0
    for _ in range(length):
        options = [c for c in engine.admissible(game, state) if not c.startswith(_IDLE)]
        results = {c: engine.step(game, state, c)[0] for c in options}
        open_ended = [c for c in options if not won(game, results[c])]
        fresh = [c for c in open_ended if results[c] not in seen]
        command = _draw(fresh or open_ended or ["look"], rng)
        state = results.get(command, state)
        unseen += state not in seen
        seen.add(state)
        commands.append(command)
    return Walk(tuple(commands), unseen)


def _draw(commands: list[str], rng: np.random.Generator) -> str:
    verbs = sorted({c.split(" ", 1)[0] for c in commands})
    verb = verbs[int(rng.integers(len(verbs)))]
    of_verb = [c for c in commands if c.split(" ", 1)[0] == verb]
    return of_verb[int(rng.integers(len(of_verb)))]
