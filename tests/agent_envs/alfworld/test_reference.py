"""The native engine against the original one, in lock-step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, TaskType
from agent_envs.alfworld.text import intro
from agent_envs.alfworld.textworld_engine import TextWorldGame
from agent_envs.alfworld.verify import verify_transcripts
from agent_envs.errors import ResetNeeded, UnsupportedGame
from tests.agent_envs.alfworld.household import LOOK, PUT, TREAT, TWO, payload
from tests.support import full_count

TRAPS = (
    "look",
    "go to desk 1",
    "go to desk 2",
    "examine mug 3",
    "use cellphone 1",
    "use desklamp 1",
    "use desklamp 1",
    "take pen 1 from desk 1",
    "examine pen 1",
    "take mug 3 from desk 2",
    "move pen 1 to desk 2",
    "look",
    "take bowl 1 from desk 2",
    "examine bowl 1",
    "move bowl 1 to desk 1",
    "look",
    "take bowl 1 from desk 1",
    "open drawer 1",
    "move bowl 1 to drawer 1",
    "look",
    "take butterknife 1 from drawer 1",
    "go to shelf 1",
    "look",
    "go to fridge 1",
    "slice apple 1 with butterknife 1",
    "open fridge 1",
    "move butterknife 1 to fridge 1",
    "take apple 1 from fridge 1",
    "examine apple 1",
    "go to microwave 1",
    "heat apple 1 with microwave 1",
    "examine apple 1",
    "heat apple 1 with microwave 1",
    "open microwave 1",
    "go to bathtubbasin 1",
    "clean apple 1 with bathtubbasin 1",
    "go to sinkbasin 1",
    "clean apple 1 with sinkbasin 1",
    "examine apple 1",
    "move apple 1 to sinkbasin 1",
    "go to shelf 1",
    "take pen 1 from shelf 1",
    "go to desk 1",
    "move pen 1 to desk 1",
    "look",
    "go to shelf 1",
    "take teddybear 1 from shelf 1",
    "go to desk 1",
    "move teddybear 1 to desk 1",
    "use desklamp 1",
    "inventory",
    "help",
)
GOALS = {
    "put": PUT.format(obj="PenType", rec="DeskType"),
    "heat": TREAT.format(able="heatable", done="isHot", obj="AppleType", rec="SinkBasinType"),
    "two": TWO.format(obj="MugType", rec="DeskType"),
    "look": LOOK.format(obj="MugType"),
}
ODD = ("", "look around", "Go to desk 1", "go to desk 99", "take it", "  look  ", "examine")


def invalid_commands(game: Game, rng: Random) -> Iterator[str]:
    """Commands that mostly do not apply: real names in wrong places, and noise."""
    while True:
        obj, rec = rng.choice(game.objs), rng.choice(game.recs)
        yield rng.choice(
            (
                f"go to {rec}",
                f"open {rec}",
                f"close {rec}",
                f"take {obj} from {rec}",
                f"move {obj} to {rec}",
                f"put {obj} in/on {rec}",
                f"examine {obj}",
                f"use {obj}",
                f"heat {obj} with {rec}",
                f"cool {obj} with {rec}",
                f"clean {obj} with {rec}",
                f"slice {obj} with {rng.choice(game.objs)}",
                *ODD,
            )
        )


def commands_for(game: Game, rng: Random, steps: int) -> Iterator[str | None]:
    """The plan, then a mixture; None asks for a random admissible command."""
    yield from game.walkthrough or ()
    noise = invalid_commands(game, rng)
    for _ in range(steps):
        kind = rng.random()
        yield next(noise) if kind < 0.3 else None


def lock_step(content: Mapping[str, Any], commands: Iterable[str | None], rng: Random) -> int:
    """Compare both engines along the commands; how many steps were compared."""
    game = compile_game(content)
    state = game.start
    steps = 0
    with TextWorldGame(content) as real:
        reply = real.reset()
        assert intro(game, state) == reply.observation
        assert admissible(game, state) == reply.admissible
        assert won(game, state) is reply.won
        for command in commands:
            if command is None:
                # half of the time something that changes more than the place
                own = [c for c in reply.admissible if not c.startswith(("go to", "help", "inv"))]
                command = rng.choice(own if rng.random() < 0.6 else reply.admissible)
            state, text, accepted = step(game, state, command)
            before, reply = reply, real.step(command)
            assert text == reply.observation, (command, text, reply.observation)
            assert admissible(game, state) == reply.admissible, command
            assert won(game, state) is reply.won, command
            assert accepted is (command.strip() in before.admissible), command
            steps += 1
    return steps


def choose(games: GameSet, kind: TaskType, index: int) -> str:
    """One game of a type; the sample takes the smaller ones, which load in half the time."""
    ids = sorted(
        games.task_ids(task_types=[kind]),
        key=lambda task_id: (len(games.payload(task_id)["pddl_problem"]), task_id),
    )
    return Random(f"{kind}").sample(ids[: full_count(15, len(ids))], index + 1)[index]


@pytest.mark.reference
@pytest.mark.data
@pytest.mark.parametrize("index", range(full_count(2, 10)))
@pytest.mark.parametrize("kind", list(TaskType))
def test_lock_step_on_real_games(
    reference: None, real_games: GameSet, kind: TaskType, index: int
) -> None:
    task_id = choose(real_games, kind, index)
    rng = Random(task_id)
    game = real_games.load(task_id)
    assert game.task_type is kind
    planned = commands_for(game, rng, full_count(8, 60))
    assert lock_step(real_games.payload(task_id), planned, rng) >= 11


@pytest.mark.reference
@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
def test_lock_step_on_the_household_of_oddities(reference: None, goal: str) -> None:
    # The first walks into every oddity; what differs between the four is the goal.
    traps = TRAPS if goal == GOALS["put"] else ()
    random_ones = [None] * full_count(10, 150)
    assert lock_step(payload(goal), [*traps, *random_ones], Random(goal))


@pytest.mark.data
def test_transcripts_of_the_original(real_data: Path, real_games: GameSet) -> None:
    result = verify_transcripts(real_data / "transcripts" / "alfworld.jsonl.gz", real_games)
    assert (result.episodes, result.steps, result.mismatches) == (72, 2880, 0)
    assert result.details == ()
    assert result.ok


@pytest.mark.reference
def test_driver_life_cycle(reference: None) -> None:
    game = TextWorldGame(payload())
    with pytest.raises(ResetNeeded):
        game.step("look")
    first = game.reset()
    assert game.step("go to shelf 1").observation.startswith("You arrive at shelf 1.")
    assert game.reset() == first
    game.close()
    game.close()
    with pytest.raises(ResetNeeded):
        game.reset()


@pytest.mark.reference
def test_driver_plans_from_the_current_state(reference: None) -> None:
    with TextWorldGame(payload()) as game:
        game.reset()
        game.step("go to fridge 1")
        plan = game.plan()
        for command in plan:
            reply = game.step(command)
        assert reply.won
        assert reply.done
        assert reply.score == 1.0


@pytest.mark.reference
def test_driver_turns_the_translators_exit_into_an_error(reference: None) -> None:
    content = payload(PUT.format(obj="MugType", rec="ShelfType").replace("inReceptacle", "within"))
    with pytest.raises(UnsupportedGame, match="within"):
        TextWorldGame(content)
