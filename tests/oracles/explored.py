"""Players for the tests of the ALFWorld explorer: one makes a mess, one asks the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.text import intro as intro_text
from oracles import Decision, History, HistoryItem, PlanStatus
from oracles.alfworld_explorer import ALFWorldExplorer

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
    "around you, you see {recs}.\n\nYour task is to: {task}"
)
_CHANGES = ("take", "move", "put", "clean", "heat", "cool", "use", "open", "close")


class Blind:
    """A privileged view for an oracle that must not read one."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"the view was asked for {name}")


@dataclass(frozen=True, slots=True)
class Played:
    """How an explorer fared."""

    won: bool
    commands: tuple[str, ...]
    observations: tuple[str, ...]
    """Before each command."""
    refused: tuple[str, ...]
    last: Decision
    state: State


def intro(game: Game) -> str:
    """The first observation of a game."""
    return intro_text(game, game.start)


def messy_walk(game: Game, rng: Random, steps: int) -> tuple[State, str, History]:
    """State, observation and record after random commands, a quarter of them nonsense.

    Commands that would win are left out.
    """
    state, text = game.start, intro(game)
    history: list[HistoryItem] = []
    while len(history) < steps:
        command = _messy_command(game, state, rng)
        following, reply, accepted = engine.step(game, state, command)
        if not won(game, following):
            history.append(HistoryItem(text, command, accepted))
            state, text = following, reply
    return state, text, tuple(history)


def _messy_command(game: Game, state: State, rng: Random) -> str:
    obj, rec = rng.choice(game.objs), rng.choice(game.recs)
    if rng.random() < 0.25:
        nonsense = ("go to {r}", "take {o} from {r}", "open {r}", "use {o}", "move {o} to {r}")
        return rng.choice((*nonsense, "clean {o} with {r}", "dance", "")).format(o=obj, r=rec)
    listed = engine.admissible(game, state)
    changing = [command for command in listed if command.startswith(_CHANGES)]
    return rng.choice(changing if changing and rng.random() < 0.6 else listed)


def explore(
    game: Game,
    oracle: ALFWorldExplorer,
    state: State | None = None,
    text: str | None = None,
    history: History = (),
    limit: int = 300,
) -> Played:
    """Let `oracle` play on until it wins, stops or has given `limit` commands."""
    state = game.start if state is None else state
    text = intro(game) if text is None else text
    pursuit = oracle.start(Blind(), history)
    commands, observations, refused = [], [], []
    while True:
        decision, pursuit = oracle.act(pursuit, Blind(), text)
        if decision.status is not PlanStatus.FOUND or len(commands) == limit:
            break
        assert decision.action is not None
        observations.append(text)
        commands.append(decision.action)
        state, text, accepted = engine.step(game, state, decision.action)
        if not accepted:
            refused.append(decision.action)
        if won(game, state):
            break
    return Played(
        won(game, state), tuple(commands), tuple(observations), tuple(refused), decision, state
    )
