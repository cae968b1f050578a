"""The generations of game files: which there are, and that each is played as it is.

Promises:
1. Both pairs of rule texts are the published ones, to the character; another pair, or one text of
   each, is refused by name.
2. Commands, answers and names are those of the game's own generation, on every way to them:
   engine, environment, prompts, planner.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import pytest

from agent_envs.alfworld import generations as module
from agent_envs.alfworld.compile import compile_game, generation_of
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.generations import (
    GENERATIONS,
    MOVE,
    PUT,
    Generation,
    domain_text,
    grammar_text,
    text_hash,
)
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import PrivilegedView, State
from agent_envs.alfworld.text import HELP
from agent_envs.errors import DataError, UnsupportedGame
from agent_envs.prompting import CompactTemplate, FieldTemplate, PromptView
from oracles.alfworld_planner import ALFWorldPlanner
from tests.agent_envs.alfworld.household import payload, play, refused, toy
from tests.agent_envs.alfworld.traps import GOALS
from tests.agent_envs.prompting.test_prompting_templates import listed_verbs
from tests.support import full_count

BOTH = pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda one: one.name)


def test_rule_texts_are_the_published_ones() -> None:
    """MD5 of the texts in published game files, the task sentence blanked."""
    hashes = {
        name: (text_hash(domain_text(name)), text_hash(grammar_text(generation=name)))
        for name in GENERATIONS
    }
    assert hashes == {
        "move": ("574a98ddcfd0745755a35fbd9d73a583", "9c61a8239e6b95ed5aa1e7ea12f6a9f7"),
        "put": ("e9f0f8b0c43ab77f7eab54b826b21243", "02dfb0c97c59699c75b0d0fcc1219d8b"),
    }


@pytest.mark.data
def test_rule_texts_are_those_of_the_older_files(real_data: Path) -> None:
    found = [file for file in older_files(real_data) if "movable_recep" not in file[0]]
    assert len(found) == 21
    for _, content in found:
        assert generation_of(content["pddl_domain"], content["grammar"]) is PUT
        assert "walkthrough" not in content


def older_files(real_data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every older game file of the test data."""
    archive_path = real_data / "alfworld_games_old.tar.xz"
    with tarfile.open(archive_path) as archive:
        for member in archive:
            if member.name.endswith(".tw-pddl"):
                file = archive.extractfile(member)
                assert file is not None
                yield member.name, json.load(file)


@pytest.mark.data
def test_o1_the_third_domain_of_the_older_files_is_refused_by_both_names(real_data: Path) -> None:
    """One file of the older data, with a movable receptacle, has other rules and wording."""
    contents = [content for name, content in older_files(real_data) if "movable_recep" in name]
    assert len(contents) == 1
    with pytest.raises(UnsupportedGame) as caught:
        compile_game(contents[0])
    message = str(caught.value)
    assert text_hash(contents[0]["pddl_domain"]).startswith("121ced9a")
    assert text_hash(contents[0]["pddl_domain"]) in message
    assert "8d88f015" in message
    for known in GENERATIONS.values():
        assert known.domain_md5 in message
        assert known.grammar_md5 in message


@pytest.mark.parametrize(("domain", "grammar"), [("move", "put"), ("put", "move")])
def test_o1_a_domain_of_one_and_a_grammar_of_the_other_are_refused(
    domain: str, grammar: str
) -> None:
    mixed = payload(generation=domain)
    mixed["grammar"] = payload(generation=grammar)["grammar"]
    with pytest.raises(UnsupportedGame) as caught:
        compile_game(mixed)
    message = str(caught.value)
    assert f"domain {GENERATIONS[domain].domain_md5}, grammar" in message
    assert f"blanked {GENERATIONS[grammar].grammar_md5}. Known" in message


def test_an_altered_rule_file_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module._data
    monkeypatch.setattr(module, "_data", lambda name: original(name).replace("pickupable", "x"))
    domain_text.cache_clear()
    try:
        with pytest.raises(DataError, match="install the package anew"):
            domain_text("put")
    finally:
        domain_text.cache_clear()


def test_older_games_arrive_at_locations_numbered_like_everything_else() -> None:
    """Seven places; the first id has the highest number: loc_bar_bath, desks, fridge, ..."""
    game = toy(generation="put")
    arrivals = {
        "go to bathtubbasin 1": "You arrive at loc 7. On the bathtubbasin 1, you see nothing.",
        "go to desk 2": "You arrive at loc 6. On the desk 2, you see a bowl 1, and a mug 3.",
        "go to drawer 1": "You arrive at loc 6. The drawer 1 is closed.",
        "go to fridge 1": "You arrive at loc 5. The fridge 1 is closed.",
        "go to sinkbasin 1": "You arrive at loc 2. On the sinkbasin 1, you see nothing.",
    }
    for command, text in arrivals.items():
        assert play(game, command)[1] == text
    assert refused(game, game.start, "go to loc 6")


def test_older_games_say_put_and_know_no_help() -> None:
    game = toy(generation="put")
    state, _ = play(game, "go to desk 2", "take mug 3 from desk 2")
    assert refused(game, state, "move mug 3 to desk 1")
    assert refused(game, state, "put mug 3 to desk 1")
    assert refused(game, state, "move mug 3 in/on desk 1")
    assert "put mug 3 in/on desk 1" in admissible(game, state)
    _, text = play(game, "put mug 3 in/on desk 1", state=state)
    assert text == "You put the mug 3 in/on the desk 1."
    assert refused(game, state, "help")
    assert "help" not in admissible(game, state)
    assert play(toy(), "help")[1] == HELP


@BOTH
def test_states_of_both_generations_are_the_same(generation: Generation) -> None:
    """Only words differ: the same walk, spelled either way, ends in the same state."""
    put, joint = generation.put
    state, _ = play(
        toy(generation=generation.name),
        "go to desk 1",
        "take pen 1 from desk 1",
        "open drawer 1",
        f"{put} pen 1 {joint} drawer 1",
        "go to shelf 1",
    )
    as_of_today, _ = play(
        toy(),
        "go to desk 1",
        "take pen 1 from desk 1",
        "open drawer 1",
        "move pen 1 to drawer 1",
        "go to shelf 1",
    )
    assert state == as_of_today


def listed(generation: Generation) -> set[str]:
    """All verbs that a generation can list."""
    verbs = {"clean", "close", "cool", "examine", "go", "heat", "inventory", "look", "open"}
    verbs |= {"slice", "take", "use", generation.put[0]}
    return verbs | {"help"} if generation.has_help else verbs


@BOTH
def test_o1_prompts_and_commands_speak_the_games_own_words(generation: Generation) -> None:
    """The verbs of a prompt are those of the admissible commands; the other word never works."""
    other = next(one for one in GENERATIONS.values() if one is not generation)
    task = "train/pick_two_obj_and_place-Mug-None-Desk-1/t"
    games = GameSet.from_games([(task, "train", payload(GOALS["two"], generation=generation.name))])
    env = gymnasium.make("SeroALFWorld-v0", data=games, max_steps=500)
    observation, info = env.reset(options={"task_id": task})
    assert info["provenance"]["generation"] == generation.name
    seen: set[str] = set()
    rng = Random(0)
    for _ in range(300):
        commands = info["admissible_actions"]
        verbs = {command.split()[0] for command in commands}
        seen |= verbs
        view = PromptView(info["goal"], observation, commands, info["action_templates"])
        for template in (FieldTemplate(), CompactTemplate()):
            assert listed_verbs(template, view) == verbs - set(template.hidden)
        puts = [command for command in commands if command.startswith(f"{generation.put[0]} ")]
        if puts:
            foreign = puts[0].replace(generation.put[0], other.put[0], 1)
            foreign = foreign.replace(f" {generation.put[1]} ", f" {other.put[1]} ", 1)
            assert foreign not in commands
            text, _, _, _, info = env.step(foreign)
            assert text == "Nothing happens."
            assert not info["command_valid"]
            assert info["admissible_actions"] == commands
        safe = [command for command in commands if "teddybear" not in command]
        by_verb = rng.choice(sorted({command.split()[0] for command in safe}))
        command = rng.choice([c for c in safe if c.startswith(by_verb)])
        observation, _, over, cut, info = env.step(command)
        assert info["command_valid"]
        if over or cut:
            observation, info = env.reset(options={"task_id": task})
    assert {generation.put[0], "go", "take", "open", "use"} <= seen
    assert seen <= listed(generation)
    assert ("help" in seen) is generation.has_help


@pytest.mark.data
@pytest.mark.parametrize(
    ("generation", "archive"),
    [(MOVE, "alfworld_games.tar.xz"), (PUT, "alfworld_games_old.tar.xz")],
    ids=["move", "put"],
)
def test_o1_real_games_offer_the_verbs_that_prompts_name(
    real_data: Path, generation: Generation, archive: str
) -> None:
    games = GameSet.from_path(real_data / archive)
    ids = games.task_ids()
    seen: set[str] = set()
    for task_id in ids[:: max(1, len(ids) // full_count(18, len(ids)))]:
        game = games.load(task_id)
        assert game.generation == generation.name
        state: State = game.start
        plan = ALFWorldPlanner().plan(PrivilegedView(game, state, None)).actions
        for command in plan:
            commands = admissible(game, state)
            view = PromptView(game.task_sentence, "", commands)
            verbs = {one.split()[0] for one in commands}
            assert listed_verbs(FieldTemplate(), view) == verbs - {"help"}
            assert command in commands
            seen |= verbs
            state, _, accepted = step(game, state, command)
            assert accepted
        assert won(game, state)
    assert generation.put[0] in seen
    assert seen <= listed(generation)


@pytest.mark.data
def test_o4_older_files_left_out_are_named_with_their_reason(real_data: Path) -> None:
    games = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    assert len(games) == 18
    assert games.skip_counts() == {"movable_receptacle": 1, "unsolvable": 3}
