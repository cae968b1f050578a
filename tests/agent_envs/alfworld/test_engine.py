"""The rules, one oddity a test, on a household written by hand (see household.py)."""

from __future__ import annotations

import pytest

from agent_envs.alfworld.engine import MEMO_LIMIT, admissible, step
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import TaskType, bits
from agent_envs.alfworld.text import HELP, intro
from tests.agent_envs.alfworld.household import LOOK, PUT, TREAT, TWO, play, refused, toy

GO_ALL = (
    "go to bathtubbasin 1",
    "go to desk 1",
    "go to desk 2",
    "go to drawer 1",
    "go to fridge 1",
    "go to microwave 1",
    "go to shelf 1",
    "go to sinkbasin 1",
)


def test_intro_lists_receptacles_in_id_order_with_descending_numbers() -> None:
    game = toy()
    assert intro(game, game.start) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a bathtubbasin 1, a desk 2, a desk 1, a drawer 1, a fridge 1, "
        "a microwave 1, a shelf 1, and a sinkbasin 1.\n\nYour task is to: put some mug on shelf."
    )


def test_numbers_run_against_id_order_and_the_unplaced_take_one() -> None:
    game = toy()
    names = dict(zip(game.obj_ids, game.objs, strict=True))
    assert [names[f"mug_bar_{x}"] for x in "abc"] == ["mug 3", "mug 2", "mug 1"]


def test_look_at_the_start_says_nothing() -> None:
    game = toy()
    _, text = play(game, "look")
    assert text == ("You are in the middle of a room. Looking quickly around you, you see nothing.")


def test_go_to_does_not_reach_what_shares_the_present_spot() -> None:
    game = toy()
    state, text = play(game, "go to desk 1")
    assert text == "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a pen 1."
    for here in ("desk 1", "desk 2", "drawer 1"):
        assert refused(game, state, f"go to {here}")
    # but everything there is within reach
    _, text = play(game, "examine desk 2", state=state)
    assert text == "On the desk 2, you see a bowl 1, and a mug 3."


def test_only_what_is_held_can_be_examined() -> None:
    game = toy()
    state, _ = play(game, "go to desk 2")
    assert refused(game, state, "examine mug 3")
    state, _ = play(game, "take mug 3 from desk 2", state=state)
    _, text = play(game, "examine mug 3", state=state)
    assert text == "There's nothing special about mug 3."
    assert refused(game, state, "examine bowl 1")


def test_doors() -> None:
    game = toy()
    state, text = play(game, "go to fridge 1")
    assert text == "You arrive at fridge 1. The fridge 1 is closed."
    assert refused(game, state, "take mug 2 from fridge 1")
    assert refused(game, state, "close fridge 1")
    state, text = play(game, "open fridge 1", state=state)
    assert text == (
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a mug 2."
    )
    assert refused(game, state, "open fridge 1")
    state, text = play(game, "close fridge 1", state=state)
    assert text == "You close the fridge 1."
    assert refused(game, play(game, "go to desk 1")[0], "open fridge 1")
    assert refused(game, play(game, "go to shelf 1")[0], "open shelf 1")


def test_an_empty_receptacle_holds_nothing_in_words() -> None:
    game = toy()
    _, text = play(game, "go to microwave 1", "open microwave 1")
    assert text == "You open the microwave 1. The microwave 1 is open. In it, you see nothing."


def test_hands_hold_one_object() -> None:
    game = toy()
    state, text = play(game, "go to desk 2", "take mug 3 from desk 2")
    assert text == "You pick up the mug 3 from the desk 2."
    assert refused(game, state, "take bowl 1 from desk 2")
    _, text = play(game, "inventory", state=state)
    assert text == "You are carrying: a mug 3."
    state, text = play(game, "move mug 3 to desk 1", state=state)
    assert text == "You move the mug 3 to the desk 1."
    _, text = play(game, "inventory", state=state)
    assert text == "You are not carrying anything."


def test_what_cannot_be_picked_up_stays() -> None:
    game = toy()
    state, _ = play(game, "go to desk 1")
    assert refused(game, state, "take desklamp 1 from desk 1")


def test_object_in_two_receptacles_leaves_only_the_one_it_was_taken_from() -> None:
    game = toy(PUT.format(obj="PenType", rec="DrawerType"))
    pen, shelf = game.obj_index["pen 1"], game.rec_index["shelf 1"]
    state, _ = play(game, "go to desk 1", "take pen 1 from desk 1")
    assert state.held == pen
    assert state.contents[shelf] >> pen & 1
    state, text = play(game, "go to shelf 1", state=state)
    assert "a pen 1" in text
    # moved into a third receptacle, it is listed in two again
    state, _ = play(game, "go to drawer 1", "open drawer 1", "move pen 1 to drawer 1", state=state)
    assert sum(inside >> pen & 1 for inside in state.contents) == 2


def test_held_object_that_is_still_listed_elsewhere_wins() -> None:
    game = toy(TREAT.format(able="cleanable", done="isClean", obj="MugType", rec="ShelfType"))
    listed = game.start._replace(
        contents=tuple(
            inside | (1 << game.obj_index["mug 3"] if name == "shelf 1" else 0)
            for name, inside in zip(game.recs, game.start.contents, strict=True)
        )
    )
    state, _ = play(
        game, "go to desk 2", "take mug 3 from desk 2", "go to sinkbasin 1", state=listed
    )
    assert not won(game, state)
    state, _ = play(game, "clean mug 3 with sinkbasin 1", state=state)
    assert won(game, state)
    assert state.held == game.obj_index["mug 3"]


def test_taking_forgets_the_present_location_only() -> None:
    """The pen is recorded at the desks; taken from the shelf, that record stays."""
    game = toy()
    pen = 1 << game.obj_index["pen 1"]
    state, _ = play(game, "go to shelf 1", "take pen 1 from shelf 1")
    at = {name for name, mask in zip(game.locs, state.at, strict=True) if mask & pen}
    assert at == {"loc_bar_desks"}
    state, _ = play(game, "move pen 1 to shelf 1", state=state)
    at = {name for name, mask in zip(game.locs, state.at, strict=True) if mask & pen}
    assert at == {"loc_bar_desks", "loc_bar_shelf"}


def test_floor_text_tells_what_was_moved_between_neighbours() -> None:
    game = toy()
    facing = "You are facing the desk 2, desk 1, and drawer 1. Next to it, you see "
    state, _ = play(game, "go to desk 2")
    assert play(game, "look", state=state)[1] == facing + "nothing."
    state, _ = play(game, "take mug 3 from desk 2", state=state)
    assert play(game, "look", state=state)[1] == facing + "nothing."
    state, _ = play(game, "move mug 3 to desk 1", state=state)
    assert play(game, "look", state=state)[1] == facing + "a mug 3."
    # taken from both desks and put into the drawer: once for each desk
    state, _ = play(
        game, "take mug 3 from desk 1", "open drawer 1", "move mug 3 to drawer 1", state=state
    )
    assert play(game, "look", state=state)[1] == facing + "a mug 3, and a mug 3."
    # put back where it was first: that desk no longer counts
    state, _ = play(game, "take mug 3 from drawer 1", "move mug 3 to desk 2", state=state)
    assert play(game, "look", state=state)[1] == facing + "a mug 3, and a mug 3."
    assert play(game, "go to shelf 1", "look", state=state)[1] == (
        "You are facing the shelf 1. Next to it, you see nothing."
    )


def test_use_works_through_doors_always_turns_on_and_flips() -> None:
    game = toy()
    phone = 1 << game.obj_index["cellphone 1"]
    state, _ = play(game, "go to drawer 1")
    for lit in (True, False, True):
        state, text = play(game, "use cellphone 1", state=state)
        assert text == "You turn on the cellphone 1."
        assert state.toggled & phone
        assert bool(state.on & phone) is lit
    state, _ = play(game, "open drawer 1", "take cellphone 1 from drawer 1", state=state)
    assert play(game, "examine cellphone 1", state=state)[1] == "This cellphone 1 is on."
    assert refused(game, state, "use cellphone 1")  # held, so in no receptacle
    assert refused(game, state, "use mug 3")
    assert play(game, "use desklamp 1", state=state)[1]  # with full hands


def test_slice_needs_a_knife_in_hand_and_works_through_doors() -> None:
    game = toy()
    state, _ = play(game, "go to fridge 1")
    assert refused(game, state, "slice apple 1 with knife 1")
    state, _ = play(game, "go to shelf 1", "take knife 1 from shelf 1", state=state)
    assert refused(game, state, "slice apple 1 with knife 1")  # not here
    state, text = play(game, "go to fridge 1", "slice apple 1 with knife 1", state=state)
    assert text == "You sliced the apple 1 with the knife 1."
    state, _ = play(game, "slice apple 1 with knife 1", state=state)
    assert refused(game, state, "slice mug 2 with knife 1")
    state, _ = play(game, "open fridge 1", "move knife 1 to fridge 1", state=state)
    state, _ = play(game, "take apple 1 from fridge 1", state=state)
    assert play(game, "examine apple 1", state=state)[1] == "This is a cool sliced apple 1."


def test_butter_knife_slices_too() -> None:
    game = toy()
    _, text = play(
        game,
        "go to drawer 1",
        "open drawer 1",
        "take butterknife 1 from drawer 1",
        "go to fridge 1",
        "slice apple 1 with butterknife 1",
    )
    assert text == "You sliced the apple 1 with the butterknife 1."


def test_heat_cool_and_clean_ignore_doors_and_can_be_repeated() -> None:
    game = toy()
    state, _ = play(game, "go to desk 2", "take mug 3 from desk 2", "go to microwave 1")
    for _ in range(2):
        state, text = play(game, "heat mug 3 with microwave 1", state=state)
        assert text == "You heat the mug 3 using the microwave 1."
    assert play(game, "examine mug 3", state=state)[1] == "This is a hot mug 3."
    state, _ = play(game, "go to sinkbasin 1", state=state)
    for _ in range(2):
        state, text = play(game, "clean mug 3 with sinkbasin 1", state=state)
        assert text == "You clean the mug 3 using the sinkbasin 1."
    assert play(game, "examine mug 3", state=state)[1] == "This is a hot and clean mug 3."
    state, _ = play(game, "go to fridge 1", state=state)
    for _ in range(2):
        state, text = play(game, "cool mug 3 with fridge 1", state=state)
        assert text == "You cool the mug 3 using the fridge 1."
    assert play(game, "examine mug 3", state=state)[1] == "This is a cool and clean mug 3."
    mug = 1 << game.obj_index["mug 3"]
    assert (state.hot & mug, state.cool & mug, state.clean & mug) == (0, mug, mug)
    assert not state.opened


def test_cold_is_the_word_for_cool_alone() -> None:
    game = toy()
    _, text = play(
        game, "go to fridge 1", "open fridge 1", "take mug 2 from fridge 1", "examine mug 2"
    )
    assert text == "This is a cold mug 2."


def test_bathtub_basin_does_not_clean() -> None:
    game = toy()
    state, _ = play(game, "go to desk 2", "take mug 3 from desk 2", "go to bathtubbasin 1")
    assert refused(game, state, "clean mug 3 with bathtubbasin 1")


def test_treatments_need_the_right_object_and_place() -> None:
    game = toy()
    state, _ = play(game, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1")
    assert refused(game, state, "cool apple 1 with fridge 1")  # not coolable
    assert refused(game, state, "heat apple 1 with fridge 1")
    assert refused(game, state, "heat apple 1 with microwave 1")  # elsewhere
    assert refused(game, state, "cool mug 2 with fridge 1")  # not held


def test_receptacle_objects_are_always_normal() -> None:
    game = toy()
    _, text = play(
        game,
        "go to desk 2",
        "take bowl 1 from desk 2",
        "go to sinkbasin 1",
        "clean bowl 1 with sinkbasin 1",
        "examine bowl 1",
    )
    assert text == "This is a normal bowl 1. In it, you see a pen 1."


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("clean hot sliced", "This is a hot and clean sliced apple 1."),
        ("clean cool sliced", "This is a cool and clean sliced apple 1."),
        ("clean sliced", "This is a clean sliced apple 1."),
        ("hot sliced", "This is a hot sliced apple 1."),
        ("cool sliced", "This is a cool sliced apple 1."),
        ("clean hot", "This is a hot and clean apple 1."),
        ("clean cool", "This is a cool and clean apple 1."),
        ("hot", "This is a hot apple 1."),
        ("clean", "This is a clean apple 1."),
        ("cool", "This is a cold apple 1."),
        ("sliced", "This is a sliced apple 1."),
        ("hot cool", "This is a hot apple 1."),
        ("", "There's nothing special about apple 1."),
    ],
)
def test_object_texts(flags: str, text: str) -> None:
    game = toy()
    apple = game.obj_index["apple 1"]
    masks = dict.fromkeys(flags.split(), 1 << apple)
    blank = {"clean": 0, "hot": 0, "cool": 0, "sliced": 0}
    state = game.start._replace(held=apple, **(blank | masks))
    assert play(game, "examine apple 1", state=state)[1] == text


def test_help_text() -> None:
    game = toy()
    _, text = play(game, "help")
    assert text == HELP
    assert text.startswith("Available commands:\n  look: ")
    assert text.endswith("using a sharp object\n")
    assert len(text.splitlines()) == 14


def test_dead_end_object_that_fits_nowhere() -> None:
    game = toy()
    state, _ = play(game, "go to shelf 1", "take teddybear 1 from shelf 1")
    for command in GO_ALL:
        there, _, accepted = step(game, state, command)
        if accepted:
            assert not any(c.startswith("move ") for c in admissible(game, there))


def test_goal_reached_can_be_lost_again() -> None:
    game = toy(PUT.format(obj="PenType", rec="DeskType"))
    assert won(game, game.start)
    state, _ = play(game, "go to desk 1", "take pen 1 from desk 1")
    assert not won(game, state)
    state, _ = play(game, "move pen 1 to desk 2", state=state)
    assert won(game, state)


def test_two_objects_have_to_be_in_one_receptacle() -> None:
    game = toy(TWO.format(obj="MugType", rec="DeskType"))
    assert game.task_type is TaskType.TWO
    state, _ = play(game, "go to fridge 1", "open fridge 1", "take mug 2 from fridge 1")
    elsewhere, _ = play(game, "go to desk 1", "move mug 2 to desk 1", state=state)
    assert not won(game, elsewhere)  # the other mug is on desk 2
    together, _ = play(game, "go to desk 1", "move mug 2 to desk 2", state=state)
    assert won(game, together)


def test_lamp_may_be_used_before_the_object_is_taken() -> None:
    game = toy(LOOK.format(obj="MugType"))
    state, _ = play(game, "go to desk 1", "use desklamp 1", "use desklamp 1")
    assert not won(game, state)
    state, _ = play(game, "take mug 3 from desk 2", state=state)
    assert won(game, state)
    state, _ = play(game, "go to shelf 1", state=state)
    assert not won(game, state)  # the lamp is elsewhere
    state, _ = play(game, "go to desk 2", state=state)
    assert won(game, state)


def test_fridge_object_needs_no_cooling() -> None:
    game = toy(TREAT.format(able="coolable", done="isCool", obj="MugType", rec="ShelfType"))
    state, _ = play(game, "go to fridge 1", "open fridge 1", "take mug 2 from fridge 1")
    state, _ = play(game, "go to shelf 1", "move mug 2 to shelf 1", state=state)
    assert won(game, state)


@pytest.mark.parametrize(
    "command",
    [
        "",
        " ",
        "Look",
        "look around",
        "go to  desk 1",
        "go to desk 3",
        "go to desk",
        "goto desk 1",
        "go to mug 3",
        "take mug 3",
        "take mug 3 from",
        "take mug 3 out desk 2",
        "take desk 2 from desk 2",
        "put mug 3 in/on desk 1",
        "move mug 3 to mug 3",
        "clean mug 3 with",
        "examine",
        "use",
        "slice apple 1 with desk 1",
        "look\nlook",
        "help\0",
        "Ｌook",
        "go to desk 1" * 1000,
    ],
)
def test_anything_else_is_refused(command: str) -> None:
    game = toy()
    for state in (game.start, play(game, "go to desk 2")[0]):
        assert refused(game, state, command)


def test_blanks_around_a_command_do_not_matter() -> None:
    game = toy()
    assert step(game, game.start, " \tgo to desk 1\n") == step(game, game.start, "go to desk 1")
    state, _ = play(game, "go to desk 2")
    assert step(game, state, " take mug 3 from desk 2 ")[2]


def test_admissible_commands_are_sorted_and_listed_once() -> None:
    game = toy()
    assert admissible(game, game.start) == (*GO_ALL, "help", "inventory", "look")
    state, _ = play(game, "go to desk 1", "take pen 1 from desk 1")
    assert admissible(game, state) == (
        "examine desk 1",
        "examine desk 2",
        "examine drawer 1",
        "examine pen 1",
        *(c for c in GO_ALL if "desk" not in c and "drawer" not in c),
        "help",
        "inventory",
        "look",
        "move pen 1 to desk 1",
        "move pen 1 to desk 2",
        "open drawer 1",
        "use cellphone 1",
        "use desklamp 1",
    )


def test_lamp_in_two_receptacles_is_listed_once() -> None:
    game = toy()
    lamp = 1 << game.obj_index["desklamp 1"]
    here = game.recs_at[game.rec_loc[game.rec_index["desk 1"]]]
    contents = list(game.start.contents)
    for rec in here:
        contents[rec] |= lamp
    state, _ = play(game, "go to desk 1", state=game.start._replace(contents=tuple(contents)))
    assert admissible(game, state).count("use desklamp 1") == 1


def test_memo_is_bounded_and_changes_nothing() -> None:
    game, fresh = toy(), toy()
    state, _ = play(game, "go to desk 1")
    before = admissible(game, state)
    pen = 1 << game.obj_index["pen 1"]
    for index in range(MEMO_LIMIT + 5):
        filler = state._replace(contents=(*([index * 2] * len(game.recs)),), opened=0)
        admissible(game, filler._replace(contents=tuple(c & ~pen for c in filler.contents)))
        assert len(game.words.memo) <= MEMO_LIMIT
    assert admissible(game, state) == before == admissible(fresh, state)


def test_bits() -> None:
    assert list(bits(0)) == []
    assert list(bits(1 << 70 | 5)) == [0, 2, 70]
