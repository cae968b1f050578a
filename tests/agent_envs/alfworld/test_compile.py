"""Reading game files: what is accepted, what is refused, and how that is said."""

from __future__ import annotations

import copy
import json

import pytest

from agent_envs.alfworld.compile import (
    compile_game,
    domain_text,
    grammar_text,
    revision,
    text_hash,
)
from agent_envs.alfworld.goals import parse_goal
from agent_envs.alfworld.model import TaskType
from agent_envs.alfworld.pddl import read_problem, read_tree, read_typed_list
from agent_envs.errors import CorruptGame, DataError, UnsupportedGame
from tests.agent_envs.alfworld.household import (
    LOOK,
    PUT,
    TREAT,
    TWO,
    payload,
    problem,
    toy,
)


def test_embedded_texts_are_the_ones_of_the_published_games() -> None:
    """MD5 of the files as shipped: a changed byte would be another game."""
    assert text_hash(domain_text()) == "574a98ddcfd0745755a35fbd9d73a583"
    assert text_hash(grammar_text()) == "9c61a8239e6b95ed5aa1e7ea12f6a9f7"
    assert grammar_text().count("UNKNOWN GOAL") == 1


def test_payload_may_be_bytes_text_or_object() -> None:
    whole = payload()
    games = [compile_game(whole), compile_game(json.dumps(whole))]
    games.append(compile_game(json.dumps(whole).encode()))
    assert {game.revision for game in games} == {revision(whole)}
    assert len({game.start for game in games}) == 1


def test_tables() -> None:
    game = toy()
    assert game.generation == "move"
    assert game.task_sentence == "put some mug on shelf."
    assert game.recs[:3] == ("bathtubbasin 1", "desk 2", "desk 1")
    assert game.rec_class[0] == "bathtubbasin"
    assert game.rec_ids[0] == "bathtub_bar_a_bar_bathtubbasin"
    desks = game.rec_loc[game.rec_index["desk 1"]]
    assert [game.recs[rec] for rec in game.recs_at[desks]] == ["desk 2", "desk 1", "drawer 1"]
    assert game.sinks == 1 << game.rec_index["sinkbasin 1"]
    assert game.microwaves == 1 << game.rec_index["microwave 1"]
    assert game.fridges == 1 << game.rec_index["fridge 1"]
    assert game.knife == sum(1 << game.obj_index[k] for k in ("knife 1", "butterknife 1"))
    teddy = game.obj_index["teddybear 1"]
    assert not any(held >> teddy & 1 for held in game.can_hold)
    assert game.inner[game.obj_index["bowl 1"]] == (game.obj_index["pen 1"],)
    assert game.locs[game.start.loc] == "loc_bar_start"
    assert game.start.cool == sum(1 << game.obj_index[k] for k in ("mug 2", "apple 1"))
    assert game.objs == tuple(
        name for name, _ in sorted(game.obj_index.items(), key=lambda item: item[1])
    )


def test_games_are_shared_by_copies_and_compared_by_identity() -> None:
    game = toy()
    assert copy.deepcopy([game])[0] is game
    assert copy.copy(game) is game
    assert game != toy()


@pytest.mark.parametrize("key", ["pddl_domain", "grammar"])
def test_o1_unknown_rules_or_wording_are_named_by_hash(key: str) -> None:
    """Another domain or grammar is an error that names both, never a quiet run of refusals."""
    changed = payload()
    changed[key] = changed[key].replace("PickupObject", "PickUpObject")
    with pytest.raises(UnsupportedGame) as caught:
        compile_game(changed)
    message = str(caught.value)
    assert f"domain {text_hash(changed['pddl_domain'])}" in message
    assert text_hash(domain_text()) in message
    assert text_hash(grammar_text()) in message
    if key == "grammar":
        assert text_hash(grammar_text().replace("PickupObject", "PickUpObject")) in message


def test_o1_put_wording_is_refused_not_played_as_move() -> None:
    older = payload()
    older["grammar"] = older["grammar"].replace("move {o} to {r}", "put {o} in/on {r}")
    with pytest.raises(UnsupportedGame, match="original engine"):
        compile_game(older)


@pytest.mark.parametrize(
    "sentence", ["put a {o.name} down", "say #task#", "a | b", "[x]", "", "a\\\\b"]
)
def test_sentences_that_the_grammar_would_interpret_are_refused(sentence: str) -> None:
    with pytest.raises(UnsupportedGame, match="task sentence"):
        compile_game(payload(task=sentence))


def test_human_sentences_are_taken_as_they_are() -> None:
    game = compile_game(payload(task="Put Bob\\u2019s mug (the blue one), clean, on a shelf"))
    assert game.task_sentence == "Put Bob\u2019s mug (the blue one), clean, on a shelf."


@pytest.mark.parametrize(
    ("goal", "kind", "objects", "receptacles"),
    [
        (PUT.format(obj="PenType", rec="DeskType"), TaskType.PICK, ["pen 1"], ["desk 1", "desk 2"]),
        (
            TREAT.format(able="cleanable", done="isClean", obj="MugType", rec="ShelfType"),
            TaskType.CLEAN,
            ["mug 2", "mug 3"],  # mug 1 is not cleanable
            ["shelf 1"],
        ),
        (
            TREAT.format(able="heatable", done="isHot", obj="AppleType", rec="ShelfType"),
            TaskType.HEAT,
            ["apple 1"],
            ["shelf 1"],
        ),
        (
            TREAT.format(able="coolable", done="isCool", obj="AppleType", rec="ShelfType"),
            TaskType.COOL,
            [],  # the apple is not coolable
            ["shelf 1"],
        ),
        (
            TWO.format(obj="MugType", rec="ShelfType"),
            TaskType.TWO,
            ["mug 1", "mug 2", "mug 3"],
            ["shelf 1"],
        ),
    ],
)
def test_goals(goal: str, kind: TaskType, objects: list[str], receptacles: list[str]) -> None:
    game = toy(goal)
    assert game.goal.kind is game.task_type is kind
    assert [
        name for name in sorted(game.objs) if game.goal.objects >> game.obj_index[name] & 1
    ] == objects
    assert (
        [name for name in sorted(game.recs) if game.goal.receptacles >> game.rec_index[name] & 1]
        == receptacles
        == sorted(game.recs[rec] for rec in game.goal_recs)
    )
    assert game.goal.lamps == 0


def test_lamp_goal() -> None:
    game = toy(LOOK.format(obj="MugType"))
    assert game.goal.kind is TaskType.LOOK
    assert game.goal.lamps == 1 << game.obj_index["desklamp 1"]  # no other toggleable


def test_names_and_order_of_variables_do_not_matter() -> None:
    swapped = """(and (exists (?x - object) (and (objectType ?x PenType) (exists
        (?y - receptacle) (and (receptacleType ?y DeskType) (inReceptacle ?x ?y))))))"""
    terms = parse_goal(read_tree(swapped))
    assert (terms.kind, terms.object_type, terms.receptacle_type) == (
        TaskType.PICK,
        "pentype",
        "desktype",
    )


@pytest.mark.parametrize(
    "goal",
    [
        # two receptacles instead of one
        "(exists (?r - receptacle ?q - receptacle ?o - object) (and (inReceptacle ?o ?r)"
        " (objectType ?o MugType) (receptacleType ?q ShelfType)))",
        # a condition more
        "(exists (?r - receptacle ?o - object) (and (inReceptacle ?o ?r) (objectType ?o MugType)"
        " (receptacleType ?r ShelfType) (isSliced ?o)))",
        # hot, but without the affordance
        "(exists (?r - receptacle ?o - object) (and (inReceptacle ?o ?r) (objectType ?o MugType)"
        " (receptacleType ?r ShelfType) (isHot ?o)))",
        # two objects of different types
        "(exists (?r - receptacle ?o - object ?p - object) (and (not (= ?o ?p))"
        " (inReceptacle ?o ?r) (inReceptacle ?p ?r) (objectType ?o MugType)"
        " (objectType ?p PenType) (receptacleType ?r ShelfType)))",
        "(or (isHot mug_bar_a) (isClean mug_bar_a))",
        "(forall (?r - receptacle) (not (opened ?r)))",
        "(not (opened desk_bar_a))",
        "(and)",
        "()",
        "(exists (?r - receptacle))",
    ],
)
def test_other_goals_are_refused(goal: str) -> None:
    with pytest.raises(UnsupportedGame, match=r"[Gg]oal"):
        toy(f"(:goal {goal})")


def test_ids_without_class_are_refused() -> None:
    changed = payload()
    changed["pddl_problem"] = problem(PUT.format(obj="MugType", rec="ShelfType")).replace(
        "Apple_bar_A", "Apple"
    )
    with pytest.raises(UnsupportedGame, match="'apple'"):
        compile_game(changed)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("(atLocation agent1 loc_bar_start)", "", UnsupportedGame, "one agent"),
        ("(openable Fridge_bar_A)", "(openable Apple_bar_A)", CorruptGame, "apple_bar_a"),
        ("(openable Fridge_bar_A)", "(openable Ghost_bar_A)", CorruptGame, "ghost_bar_a"),
        ("(openable Fridge_bar_A)", "(broken Fridge_bar_A)", UnsupportedGame, "broken"),
        ("(openable Fridge_bar_A)", "(openable Fridge_bar_A 3)", UnsupportedGame, "openable"),
        ("(openable Fridge_bar_A)", "(= (distance a b) 3)", UnsupportedGame, "plain facts"),
        ("(openable Fridge_bar_A)", "openable", CorruptGame, "fact"),
        (
            "(receptacleAtLocation Fridge_bar_A loc_bar_fridge)",
            "(receptacleAtLocation Fridge_bar_A loc_bar_fridge)"
            "(receptacleAtLocation Fridge_bar_A loc_bar_sink)",
            UnsupportedGame,
            "two locations",
        ),
        ("(:init", "(:metric minimize (total-cost)) (:init", UnsupportedGame, ":metric"),
        ("(:init", "(:init) (:init", CorruptGame, "twice"),
        ("(:init", "(:innit", UnsupportedGame, ":innit"),
        ("(:goal", "((:goal", CorruptGame, "cut off"),
        ("(define", ")(define", CorruptGame, "without"),
        ("(define", "(defined", CorruptGame, "define"),
        (
            "Mug_bar_A - object",
            "Mug_bar_A - object MUG_BAR_A - receptacle",
            CorruptGame,
            "without case",
        ),
        ("agent1 - agent", "agent1 -", CorruptGame, "typed list"),
        ("agent1 - agent", "- agent agent1 - agent", CorruptGame, "typed list"),
    ],
)
def test_broken_problems(old: str, new: str, error: type[DataError], message: str) -> None:
    text = problem(PUT.format(obj="MugType", rec="ShelfType"))
    assert old in text
    with pytest.raises(error, match=message):
        compile_game(payload(pddl_problem=text.replace(old, new, 1)))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"{}", b"null", b"{" * 100_000, '{"pddl_domain": 1}', "NaN"],
)
def test_files_that_are_no_games(content: bytes | str) -> None:
    with pytest.raises(CorruptGame):
        compile_game(content)


@pytest.mark.parametrize("walkthrough", ["look", [1], {"a": 1}])
def test_walkthrough_is_a_list_of_commands(walkthrough: object) -> None:
    with pytest.raises(CorruptGame, match="walkthrough"):
        compile_game(payload(walkthrough=walkthrough))


def test_truncated_file_is_corrupt_at_every_length() -> None:
    text = problem(PUT.format(obj="MugType", rec="ShelfType"))
    for end in range(0, len(text) - 1, 97):
        with pytest.raises(DataError):
            compile_game(payload(pddl_problem=text[:end]))


def test_reader_handles_comments_case_and_depth() -> None:
    assert read_tree("; first\n(A (b ; c)\n d))") == ["a", ["b", "d"]]
    with pytest.raises(CorruptGame, match="nested"):
        read_tree("(" * 5000 + ")" * 5000)
    assert read_typed_list([]) == {}
    with pytest.raises(CorruptGame):
        read_problem("(define)")


def test_compiling_reads_no_global_randomness() -> None:
    import random

    before = random.getstate()
    assert toy().start == toy().start
    assert random.getstate() == before
