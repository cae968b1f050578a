"""`admissible` names exactly the commands that `step` accepts, in any state."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.text import REFUSAL
from tests.agent_envs.alfworld.household import payload, play, toy
from tests.support import full_count


@cache
def every_command(game: Game) -> tuple[str, ...]:
    """All commands that the grammar can spell with this game's names, and some that it cannot."""
    one = [
        f"{verb} {name}"
        for verb in ("go to", "open", "close", "examine", "use", "look", "help")
        for name in (*game.recs, *game.objs)
    ]
    two = [
        f"{verb} {first} {word} {second}"
        for verb, word in (
            ("take", "from"),
            ("move", "to"),
            ("put", "in/on"),
            ("heat", "with"),
            ("cool", "with"),
            ("clean", "with"),
            ("slice", "with"),
        )
        for first, second in product(game.objs, (*game.recs, *game.objs))
    ]
    return ("look", "inventory", "help", "wait", "", *one, *two)


def accepted_ones(game: Game, state: State) -> tuple[str, ...]:
    found = set()
    for command in every_command(game):
        after, text, accepted = step(game, state, command)
        if accepted:
            assert text != REFUSAL
            found.add(command)
        else:
            assert after is state
            assert text == REFUSAL
    return tuple(sorted(found))


TOY = toy()
OLDER = toy(generation="put")  # the same things, so the same states
OBJS = (1 << len(TOY.objs)) - 1
RECS = (1 << len(TOY.recs)) - 1


@st.composite
def any_state(draw: st.DrawFn) -> State:
    """Any well-formed state of the toy, reachable or not."""
    objects = st.integers(0, OBJS)
    row = st.lists(objects, min_size=len(TOY.recs), max_size=len(TOY.recs)).map(tuple)
    places = st.lists(objects, min_size=len(TOY.locs), max_size=len(TOY.locs)).map(tuple)
    return State(
        draw(st.integers(0, len(TOY.locs) - 1)),
        draw(st.integers(-1, len(TOY.objs) - 1)),
        draw(row),
        draw(places),
        draw(st.integers(0, RECS)) & TOY.openable,
        *(draw(objects) for _ in range(6)),
        draw(row),
    )


@given(any_state())
def test_in_any_state_of_the_household_of_oddities(state: State) -> None:
    assert admissible(TOY, state) == accepted_ones(TOY, state)
    assert admissible(OLDER, state) == accepted_ones(OLDER, state)


@given(any_state(), st.text(max_size=40))
def test_no_text_breaks_the_engine(state: State, command: str) -> None:
    _, text, accepted = step(TOY, state, command)
    assert accepted is (command.strip() in admissible(TOY, state))
    assert accepted is (text != REFUSAL)


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_walks_keep_the_state_consistent(choices: list[int]) -> None:
    """Held things are taken from where they were; masks never exceed the game's objects."""
    state = TOY.start
    for choice in choices:
        commands = admissible(TOY, state)
        state, _ = play(TOY, commands[choice % len(commands)], state=state)
        assert all(inside & ~OBJS == 0 for inside in (*state.contents, *state.at, *state.removed))
        assert not state.hot & state.cool
        assert not any(a & b for a, b in zip(state.contents, state.removed, strict=True))
    assert admissible(TOY, state) == accepted_ones(TOY, state)


@pytest.mark.data
def test_on_walks_through_real_games(real_games: GameSet) -> None:
    ids = Random(5).sample(real_games.task_ids(), full_count(6, 60))
    for task_id in ids:
        game, rng = real_games.load(task_id), Random(task_id)
        state = game.start
        for number in range(full_count(25, 50)):
            commands = admissible(game, state)
            if number % 8 == 0:
                assert commands == accepted_ones(game, state)
            own = [c for c in commands if not c.startswith(("go to", "help", "inventory"))]
            state, _, accepted = step(game, state, rng.choice(rng.choice((commands, own))))
            assert accepted


@pytest.mark.data
def test_o15_shipped_walkthroughs_win(real_games: GameSet) -> None:
    """Every action of a shipped plan is listed when it is taken, and only the last one wins."""
    from agent_envs.alfworld.goals import won

    for task_id in real_games.task_ids():
        game = compile_game(real_games.payload(task_id))
        plan = game.walkthrough
        assert plan
        assert game.solvable
        state = game.start
        for command in plan:
            assert not won(game, state), task_id
            assert command in admissible(game, state), (task_id, command)
            state, _, accepted = step(game, state, command)
            assert accepted
        assert won(game, state), task_id


def test_equal_states_of_equal_games_list_the_same() -> None:
    """The memo of one game never leaks into another."""
    first, second = compile_game(payload()), compile_game(payload())
    assert first is not second
    assert first.revision == second.revision
    state, _ = play(first, "go to desk 1", "take pen 1 from desk 1")
    assert admissible(first, state) == admissible(second, state)
