"""The explorer from any state that a student leaves, and receptacles at one spot."""

from __future__ import annotations

import pytest

from tests.oracles.explorer_table import NO, Table, moved, opened, shut, took, went

# ------------------------------------------------------------------ from a student's mess


def test_goes_on_after_a_student_that_opened_closed_and_moved_things() -> None:
    table = Table("put a clean mug in shelf.")
    table.did("take mug 1 from desk 1", NO).did("go to the desk", NO)
    table.did("go to desk 1", went("desk 1", "a mug 1, and a book 1"))
    table.did("take mug 1 from desk 1", took("mug 1", "desk 1"))
    table.did("go to drawer 1", shut("drawer 1")).did("open drawer 1", opened("drawer 1"))
    table.did("move mug 1 to drawer 1", moved("mug 1", "drawer 1"))
    table.did("close drawer 1", "You close the drawer 1.")
    table.did("go to sinkbasin 1", went("sinkbasin 1"))
    table.did("clean mug 1 with sinkbasin 1", NO)  # not in hand: no news about the mug
    table.goes(
        "go to drawer 1",
        shut("drawer 1"),
        "open drawer 1",
        opened("drawer 1", "a mug 1"),
        "take mug 1 from drawer 1",
        took("mug 1", "drawer 1"),
        "go to sinkbasin 1",
        went("sinkbasin 1"),
        "clean mug 1 with sinkbasin 1",
    )


def test_what_the_student_cleaned_is_not_cleaned_again() -> None:
    table = Table("put a clean mug in shelf.")
    table.did("go to desk 1", went("desk 1", "a mug 2, and a mug 1"))
    table.did("take mug 2 from desk 1", took("mug 2", "desk 1"))
    table.did("go to sinkbasin 1", went("sinkbasin 1"))
    table.did("clean mug 2 with sinkbasin 1", "You clean the mug 2 using the sinkbasin 1.")
    table.did("move mug 2 to sinkbasin 1", moved("mug 2", "sinkbasin 1"))
    table.did("go to desk 1", went("desk 1", "a mug 1"))
    # mug 1 is at hand, but has to be taken to the basin, where mug 2 is clean
    table.goes(
        "go to sinkbasin 1",
        went("sinkbasin 1", "a mug 2"),
        "take mug 2 from sinkbasin 1",
        took("mug 2", "sinkbasin 1"),
        "go to shelf 1",
    )


def test_hands_full_of_something_else_are_emptied_where_it_fits() -> None:
    table = Table("put some mug on shelf.", "a desk 1, a shelf 1, a stoveburner 1, and a fridge 1")
    table.did("go to desk 1", went("desk 1", "a book 1, and a mug 1"))
    table.did("take book 1 from desk 1", took("book 1", "desk 1"))
    table.goes("move book 1 to desk 1")  # right here

    table = Table("put some mug on shelf.", "a desk 1, a shelf 1, a stoveburner 1, and a fridge 1")
    table.did("go to desk 1", went("desk 1", "a book 1, and a mug 1"))
    table.did("take book 1 from desk 1", took("book 1", "desk 1"))
    table.did("go to stoveburner 1", went("stoveburner 1"))  # takes no books, nor does the fridge
    assert table.ask() in ("go to desk 1", "go to shelf 1")


def test_a_house_unlike_the_public_ones_is_tried_all_over() -> None:
    table = Table("put some mug on shelf.", "a desk 1, and a fridge 1, and a shelf 1")
    table.did("go to desk 1", went("desk 1", "a book 1"))
    table.did("take book 1 from desk 1", took("book 1", "desk 1"))
    table.did("move book 1 to desk 1", NO).did("go to shelf 1", went("shelf 1"))
    table.did("move book 1 to shelf 1", NO)  # the only two that take books elsewhere
    table.goes("go to fridge 1", shut("fridge 1"), "open fridge 1", opened("fridge 1"))
    table.goes("move book 1 to fridge 1", NO)
    assert table.ask() == "unsolvable: hands are full: no receptacle in the room takes book 1"


def test_hands_full_for_ever_is_a_dead_end() -> None:
    table = Table("put some mug on shelf.")
    table.did("go to desk 1", went("desk 1", "a mug 1, and a teddybear 1"))
    table.did("take teddybear 1 from desk 1", took("teddybear 1", "desk 1"))
    assert table.ask() == (
        "unsolvable: hands are full: no receptacle in the room takes teddybear 1"
    )


def test_a_refused_take_makes_it_check_its_hands() -> None:
    table = Table("put some mug on shelf.", "a desk 1, and a shelf 1")
    table.goes(
        "go to desk 1",
        went("desk 1", "a mug 2, and a mug 1"),
        "take mug 1 from desk 1",
        NO,
        "inventory",
        "You are not carrying anything.",
        "take mug 2 from desk 1",  # mug 1 cannot be taken at all
        NO,
        "inventory",
        "You are carrying: a book 3.",
        "move book 3 to desk 1",
        moved("book 3", "desk 1"),
        "take mug 2 from desk 1",
    )


def test_what_is_refused_although_it_should_do_is_given_up() -> None:
    table = Table("put a clean mug in shelf.", "a desk 1, a shelf 1, and a sinkbasin 1")
    table.did("go to desk 1", went("desk 1", "a mug 2, and a mug 1"))
    table.did("take mug 1 from desk 1", took("mug 1", "desk 1"))
    table.did("go to sinkbasin 1", went("sinkbasin 1"))
    table.goes(
        "clean mug 1 with sinkbasin 1",
        NO,
        "move mug 1 to sinkbasin 1",
        moved("mug 1", "sinkbasin 1"),
        "go to desk 1",
        went("desk 1", "a mug 2"),
        "take mug 2 from desk 1",
    )


# ------------------------------------------------------------------ receptacles at one spot


def test_looks_around_where_the_next_receptacle_may_stand_right_here() -> None:
    """Two stove burners come in pairs; a move between them would be refused."""
    recs = "a stoveburner 1, a stoveburner 2, and a shelf 1"
    first, second = "stoveburner 1", "stoveburner 2"
    if Table("put some pan on shelf.", recs).ask() != f"go to {first}":
        first, second = second, first
    Table("put some pan on shelf.", recs).goes(
        f"go to {first}",
        went(first),
        "look",
        f"You are facing the {first}, and {second}. Next to it, you see nothing.",
        f"examine {second}",
        f"On the {second}, you see a pan 1.",
        f"take pan 1 from {second}",
        took("pan 1", second),
        "go to shelf 1",
    )


def test_with_risk_it_tries_and_learns_from_the_refusal() -> None:
    recs = "a drawer 1, a drawer 2, and a drawer 3"
    table = Table("put some pen on desk.", recs + ", and a desk 1", risk=1, seed=0)
    table.did("go to desk 1", went("desk 1"))
    first = table.ask()
    assert first is not None
    rec = first.removeprefix("go to ")
    table.text = shut(rec)
    table.goes(f"open {rec}", opened(rec))
    following = table.ask()
    assert following is not None
    other = following.removeprefix("go to ")
    table.text = NO  # so it stands right here
    table.goes(f"open {other}", NO)  # and it has no door
    table.goes(f"examine {other}", f"On the {other}, you see a pen 1.", f"take pen 1 from {other}")


@pytest.mark.parametrize(
    "way",
    [
        ["stoveburner 1", "stoveburner 2"],  # it went from one to the other
        ["stoveburner 1", "look", "shelf 1", "stoveburner 2"],  # nothing else stands at the first
        ["stoveburner 1", "shelf 1", "stoveburner 2", "look"],  # nor at the second
    ],
)
def test_does_not_look_around_where_it_knows(way: list[str]) -> None:
    room = "a stoveburner 1, a stoveburner 2, and a shelf 1"
    table = Table("put two pan in stoveburner.", room)
    here = ""
    for rec in way:
        if rec == "look":
            table.did("look", f"You are facing the {here}. Next to it, you see nothing.")
            continue
        here, things = rec, {"stoveburner 1": "a pan 1", "stoveburner 2": "a pan 2"}
        table.did(f"go to {rec}", went(rec, things.get(rec, "nothing")))
    table.did("take pan 2 from stoveburner 2", took("pan 2", "stoveburner 2"))
    assert table.ask() == "go to stoveburner 1"
