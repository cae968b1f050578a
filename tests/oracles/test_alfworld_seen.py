"""What a player of ALFWorld can know, against the engine's true state and against texts by hand.

Promises:
1. Whatever a player did, sensible or not, all that the fold holds is true: what lies where, doors,
   hands, which receptacles stand together and which apart.
2. A refusal teaches something only where the command should have been possible.
"""

from __future__ import annotations

from random import Random

import pytest

from agent_envs.alfworld import engine
from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL
from agent_envs.alfworld.model import Game, State, bits
from oracles.alfworld_request import Request, read_request
from oracles.alfworld_seen import Seen, fold, fold_history, put_command
from tests.agent_envs.alfworld.household import toy
from tests.agent_envs.alfworld.traps import GOALS, WALK, spelled
from tests.oracles.explored import INTRO, intro, messy_walk
from tests.support import full_count

REFUSED = "Nothing happens."


def check_truth(game: Game, state: State, seen: Seen) -> None:
    """Promise 1, for what was seen of `state`."""
    recs = {name: index for index, name in enumerate(game.recs)}
    spot = {name: game.rec_loc[index] for name, index in recs.items()}
    assert seen.held == (None if state.held < 0 else game.objs[state.held])
    assert {spot[name] for name in seen.here} <= {state.loc}
    for rec, objs in seen.inside.items():
        truth = {game.objs[obj] for obj in bits(state.contents[recs[rec]])}
        assert objs == truth if rec in seen.looked else objs <= truth
    doors = {name for name, index in recs.items() if game.openable >> index & 1}
    opened = {name for name in doors if state.opened >> recs[name] & 1}
    assert seen.opened <= opened
    assert seen.closed <= doors - opened
    for rec, others in seen.spots.items():
        assert {spot[name] for name in others} == {spot[rec]}
        assert rec in others
    for rec in seen.surveyed:
        assert seen.spot(rec) == {name for name in recs if spot[name] == spot[rec]}
    assert all(len({spot[name] for name in pair}) == 2 for pair in seen.apart)
    for known, mask in (
        (seen.clean, state.clean),
        (seen.hot, state.hot),
        (seen.cool, state.cool),
        (seen.lit, state.toggled),
    ):
        assert known <= {game.objs[obj] for obj in bits(mask)}


def test_everything_known_after_a_messy_walk_is_true() -> None:
    games = generate_game_set(3, {"train": full_count(12, 150)}, SMALL)
    learnt = 0
    for number, task_id in enumerate(games.task_ids()):
        game = games.load(task_id)
        state, text, history = messy_walk(game, Random(number), 40)
        seen, command, valid = fold_history(history)
        seen = fold(seen, command, text, valid)
        check_truth(game, state, seen)
        assert seen.recs == game.recs
        assert seen.suspect is None
        learnt += len(seen.looked)
    assert learnt > 4 * len(games)  # the sample is worth something


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_household_of_oddities_is_known_truly_at_every_step(generation: str) -> None:
    """Shared spots, objects listed twice, cold food, things that nothing takes back."""
    game = toy(GOALS["heat"], generation)
    state, text = game.start, intro(game)
    seen = fold(Seen(), None, text)
    for command in spelled(WALK, generation).replace("\n", " | ").split("|"):
        if not command.strip():
            continue
        state, text, accepted = engine.step(game, state, command.strip())
        seen = fold(seen, command.strip(), text, accepted)
        check_truth(game, state, seen)
    assert seen.generation == generation
    assert seen.held == "teddybear 1"
    assert {"desk 1", "desk 2", "drawer 1"} == seen.spot("desk 1")
    # read when it was examined, never done by the player
    assert "mug 2" in seen.cool


def test_the_first_observation_names_task_and_receptacles() -> None:
    seen = fold(Seen(), None, INTRO.format(recs="a desk 2, a desk 1, and a bed 1", task="do it."))
    assert seen.sentence == "do it."
    assert seen.recs == ("desk 2", "desk 1", "bed 1")
    assert seen.here == ()


ROOM = fold(Seen(), None, INTRO.format(recs="a drawer 1, a drawer 2, and a bed 1", task="x."))
AT_BED = fold(ROOM, "go to bed 1", "You arrive at bed 1. On the bed 1, you see a pillow 1.")


def test_a_refused_move_shows_who_stands_here_and_an_accepted_one_who_does_not() -> None:
    at_drawer = fold(AT_BED, "go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")
    assert at_drawer.apart == {frozenset(("drawer 1", "bed 1"))}
    seen = fold(at_drawer, "go to drawer 2", REFUSED, False)
    assert seen.here == ("drawer 1", "drawer 2")
    assert seen.spot("drawer 1") == {"drawer 1", "drawer 2"}
    assert seen.surveyed == frozenset()  # there may be more
    for known in ("drawer 1", "table 9"):  # already here, or nowhere
        assert fold(at_drawer, f"go to {known}", REFUSED, False) == at_drawer
    looked = fold(at_drawer, "look", "You are facing the drawer 1. Next to it, you see nothing.")
    assert looked.surveyed == {"drawer 1"}


def test_only_surprising_refusals_are_remembered() -> None:
    for command in (
        "take pillow 2 from bed 1",  # not there
        "take pillow 1 from drawer 1",  # not here
        "move pillow 1 to bed 1",  # not held
        "clean pillow 1 with bed 1",
        "open drawer 1",
        "use pillow 1",
        "dance",
        "",
    ):
        assert fold(AT_BED, command, REFUSED, False) == AT_BED, command
    held = fold(AT_BED, "take pillow 1 from bed 1", "You pick up the pillow 1 from the bed 1.")
    assert held.held == "pillow 1"
    assert held.inside["bed 1"] == frozenset()
    assert fold(held, "move pillow 1 to bed 1", REFUSED).futile == {"move pillow 1 to bed 1"}
    # the other generation's words would be refused anyway
    assert fold(held, "put pillow 1 in/on bed 1", REFUSED).futile == frozenset()


def test_a_refused_take_is_futile_only_with_empty_hands() -> None:
    take = "take pillow 1 from bed 1"
    seen = fold(AT_BED, take, REFUSED, False)
    assert (seen.suspect, seen.futile) == (take, frozenset())
    empty = fold(seen, "inventory", "You are not carrying anything.")
    assert (empty.suspect, empty.futile) == (None, {take})
    full = fold(seen, "inventory", "You are carrying: a pen 3.")
    assert (full.suspect, full.futile, full.held) == (None, frozenset(), "pen 3")


def test_a_reply_that_was_not_accepted_is_not_read() -> None:
    """Environments may answer a malformed reply with anything."""
    text = "You pick up the pillow 1 from the bed 1."
    assert fold(AT_BED, "take the pillow", text, False) == AT_BED


def test_acting_on_an_unvisited_receptacle_shows_where_it_stands_but_not_all_that_it_holds() -> (
    None
):
    at = fold(ROOM, "go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")
    seen = fold(at, "take pen 1 from drawer 2", "You pick up the pen 1 from the drawer 2.")
    assert seen.here == ("drawer 1", "drawer 2")
    assert "drawer 2" not in seen.looked
    seen = fold(seen, "move pen 1 to drawer 2", "You move the pen 1 to the drawer 2.")
    assert seen.inside["drawer 2"] == {"pen 1"}
    assert "drawer 2" not in seen.looked


def test_words_of_the_older_games() -> None:
    seen = fold(ROOM, "go to bed 1", "You arrive at loc 7. On the bed 1, you see nothing.")
    assert seen.here == ("bed 1",)
    assert put_command(seen, "pen 1", "bed 1") == "put pen 1 in/on bed 1"
    assert put_command(AT_BED, "pen 1", "bed 1") == "move pen 1 to bed 1"


def test_heating_undoes_cooling_and_cleaning_stays() -> None:
    seen = AT_BED
    for verb, tool in (("clean", "sinkbasin"), ("cool", "fridge"), ("heat", "microwave")):
        seen = fold(seen, f"{verb} egg 1", f"You {verb} the egg 1 using the {tool} 1.")
    assert (seen.clean, seen.hot, seen.cool) == ({"egg 1"}, {"egg 1"}, frozenset())


@pytest.mark.parametrize(
    ("sentence", "request_"),
    [
        ("put a cd in safe.", "pick_and_place_simple cd safe"),
        ("put some cd on desk.", "pick_and_place_simple cd desk"),
        ("look at mug under the desklamp.", "look_at_obj_in_light mug None"),
        ("examine the mug with the desklamp.", "look_at_obj_in_light mug None"),
        ("put a clean mug in shelf.", "pick_clean_then_place_in_recep mug shelf"),
        ("clean some mug and put it in shelf.", "pick_clean_then_place_in_recep mug shelf"),
        ("put a hot egg in fridge.", "pick_heat_then_place_in_recep egg fridge"),
        ("heat some egg and put it in fridge.", "pick_heat_then_place_in_recep egg fridge"),
        ("put a cool egg in sinkbasin.", "pick_cool_then_place_in_recep egg sinkbasin"),
        ("cool some egg and put it in sinkbasin.", "pick_cool_then_place_in_recep egg sinkbasin"),
        ("put two cd in safe.", "pick_two_obj_and_place cd safe"),
        ("find two cd and put them in safe.", "pick_two_obj_and_place cd safe"),
        ("put a mug in/on desk.", "pick_and_place_simple mug desk"),
        ("put a warm egg in fridge.", None),
        ("Move the discs to the safe.", None),
        ("look at mug under the floorlamp.", None),
        ("put two cd in safe and close it.", None),
        ("", None),
    ],
)
def test_sentences(sentence: str, request_: str | None) -> None:
    found = read_request(sentence)
    if request_ is None:
        assert found is None
    else:
        assert isinstance(found, Request)
        assert f"{found.kind.value} {found.obj} {found.rec}" == request_
