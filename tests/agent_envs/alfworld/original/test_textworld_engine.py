"""The driver of the original engine: its life cycle, its plans, its errors.

That both engines say the same is tested in test_lockstep.py.
"""

from __future__ import annotations

import pytest

from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from agent_envs.errors import ResetNeeded, UnsupportedGame
from tests.agent_envs.alfworld.household import PUT, payload
from tests.support import run_python


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


@pytest.mark.reference
def test_the_first_game_of_a_process_leaves_global_numbers_alone(reference: None) -> None:
    """Importing the packages draws from NumPy's generator: the very first use has to be seen."""
    code = """
import random, numpy
from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from tests.agent_envs.alfworld.household import payload
random.seed(1), numpy.random.seed(1)
expected = random.random(), numpy.random.random()
random.seed(1), numpy.random.seed(1)
with TextWorldGame(payload()) as game:
    game.reset()
print((random.random(), numpy.random.random()) == expected)
"""
    assert run_python(code).split() == ["True"]
