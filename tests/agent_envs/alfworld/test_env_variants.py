"""Other numbers and other words for the same game: `domain_randomization`, `goal_source`."""

from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.naming import number_names, renamed, shuffled
from agent_envs.alfworld.variants import MARK
from agent_envs.errors import InvalidOption, MissingData, SnapshotMismatch, UnsupportedGame
from tests.agent_envs.alfworld.household import toy
from tests.agent_envs.alfworld.worlds import LAMP, MUG, PEN, SAID, make, tree, walk
from tests.support import run_python


def numbers(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    game = env.unwrapped.privileged().game
    return (*game.objs, *game.recs)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def test_numbers_are_drawn_anew_and_lists_keep_their_order() -> None:
    env, plain = make(domain_randomization=True), make()
    first, _ = plain.reset(options={"task_id": MUG})
    ids = plain.unwrapped.privileged().game.obj_ids
    seen = set()
    for seed in range(12):
        text, info = env.reset(seed=seed, options={"task_id": MUG})
        game = env.unwrapped.privileged().game
        assert game.obj_ids == ids
        assert without_numbers(text) == without_numbers(first)
        assert sorted(game.objs) == sorted(plain.unwrapped.privileged().game.objs)
        assert text.index(game.recs[0]) < text.index(game.recs[1])  # both desks, by id
        assert info["provenance"]["naming"].startswith("shuffled:")
        seen.add(numbers(env))
    assert len(seen) > 6  # of the 12 that three mugs and two desks allow
    unseeded = set()
    for _ in range(12):
        env.reset(options={"task_id": MUG})
        unseeded.add(numbers(env))
    assert len(unseeded) > 3


def test_o12_numbers_depend_on_the_seed_alone() -> None:
    env = make(domain_randomization=True)
    random.seed(1)
    first = env.reset(seed=11)
    walk(env, first[1], random.Random(0), 5)
    random.seed(2)
    state = random.getstate()
    assert env.reset(seed=11) == first
    assert make(domain_randomization=True).reset(seed=11) == first
    assert random.getstate() == state


def test_only_training_games_get_other_numbers() -> None:
    env, plain = make(domain_randomization=True, split=None), make(split=None)
    for seed in range(4):
        assert env.reset(seed=seed, options={"task_id": LAMP}) == plain.reset(
            seed=seed, options={"task_id": LAMP}
        )


def test_the_game_plays_the_same_under_other_numbers() -> None:
    """Every command and every text is the plain one with the names exchanged."""
    env, plain = make(domain_randomization=True), make()
    _, info = env.reset(seed=3, options={"task_id": MUG})
    _, other = plain.reset(options={"task_id": MUG})
    names = dict(zip(numbers(env), numbers(plain), strict=True))
    assert any(new != old for new, old in names.items())

    def back(text: str) -> str:
        return re.sub(r"[a-z]+ \d+", lambda match: names[match[0]], text)

    rng = random.Random(4)
    for _ in range(40):
        assert sorted(map(back, info["admissible_actions"])) == list(other["admissible_actions"])
        assert list(info["admissible_actions"]) == sorted(info["admissible_actions"])
        command = rng.choice(info["admissible_actions"])
        text, reward, won, _, info = env.step(command)
        old, *rest, other = plain.step(back(command))
        assert (back(text), reward, won) == (old, *rest[:2])
        assert env.unwrapped.privileged().state == plain.unwrapped.privileged().state
        if won:
            break


def test_a_shuffled_walkthrough_is_spelled_with_the_new_names() -> None:
    plan = ("take mug 3 from desk 2", "go to shelf 1", "examine mug 3", "look")
    game = replace(toy(), walkthrough=plan)
    moved = game.obj_index["mug 3"]
    key = next(k for k in range(99) if renamed(game, k).obj_index["mug 3"] != moved)
    other = renamed(game, key)
    mug, desk = other.objs[game.obj_index["mug 3"]], other.recs[game.rec_index["desk 2"]]
    assert mug != "mug 3"
    assert other.walkthrough == (
        f"take {mug} from {desk}", "go to shelf 1", f"examine {mug}", "look",
    )  # fmt: skip


def test_shuffled_real_games_are_won_by_their_walkthrough(real_games: GameSet) -> None:
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, domain_randomization=True)
    for task_id in real_games.task_ids("train")[::60]:
        env.reset(seed=7, options={"task_id": task_id})
        game = env.unwrapped.privileged().game
        assert game.objs != real_games.load(task_id).objs
        for command in game.walkthrough:
            *_, info = env.step(command)
        assert info["success"]


def test_an_earlier_generation_numbers_its_locations_too() -> None:
    game = toy(generation="put")
    for key in range(5):
        other = renamed(game, key)
        names = number_names(shuffled({*game.obj_ids, *game.rec_ids, *game.locs}, key))
        for rec, loc in enumerate(game.rec_loc):
            assert other.words.arrive[rec] == f"You arrive at {names[game.locs[loc]]}. "


@pytest.mark.reference
def test_numbers_follow_the_rule_of_the_original(reference: None) -> None:
    """ALFWorld's own class, shuffling with the global generator, against our rule."""
    from types import SimpleNamespace

    from alfworld.agents.utils.misc import Demangler

    game = toy()
    ids = sorted([*game.obj_ids, *game.rec_ids, *game.locs])
    infos = {name: SimpleNamespace(id=name) for name in ids}
    state = random.getstate()
    try:
        for seed in range(20):
            random.seed(seed)
            original = Demangler(game_infos=infos, shuffle=True)
            order = list(ids)
            random.Random(seed).shuffle(order)
            names = number_names(order)
            assert {name: original.demangle_alfred_name(name) for name in ids} == names
    finally:
        random.setstate(state)


# ---------------------------------------------------------------------- words of the task


@pytest.fixture
def told(tmp_path: Path) -> GameSet:
    return GameSet.from_path(tree(tmp_path))


def test_a_persons_sentence_is_the_goal_as_it_is_written(told: GameSet) -> None:
    env = make(data=told, goal_source="human")
    found = set()
    for seed in range(20):
        text, info = env.reset(seed=seed, options={"task_id": MUG})
        _, _, which = info["provenance"]["goal_source"].partition(":")
        assert info["goal"] == SAID[int(which)] + "."  # the grammar's own full stop
        assert text.endswith("\n\nYour task is to: " + info["goal"])
        found.add(int(which))
    assert found == {0, 3}  # the grammar cannot hold the other two
    assert make(data=told).reset(options={"task_id": MUG})[1]["goal"] == "put some mug on shelf."


def test_one_sentence_can_be_asked_for(told: GameSet) -> None:
    env = make(data=told, goal_source="human", goal_index=3)
    for seed in range(4):
        _, info = env.reset(seed=seed, options={"task_id": MUG})
        assert info["goal"] == SAID[3] + "."
        assert info["provenance"]["goal_source"] == "human:3"


@pytest.mark.parametrize(
    ("index", "task_id", "error", "message"),
    [
        (None, PEN, MissingData, "no human-annotated goals"),
        (0, PEN, MissingData, "goal_source='template'"),
        (4, MUG, InvalidOption, "has 4 human-annotated"),
        (1, MUG, UnsupportedGame, "mug"),
        (2, MUG, UnsupportedGame, "drop it"),
    ],
)
def test_a_sentence_that_is_not_there(
    told: GameSet, index: int | None, task_id: str, error: type[Exception], message: str
) -> None:
    env = make(data=told, goal_source="human", goal_index=index)
    with pytest.raises(error, match=message):
        env.reset(options={"task_id": task_id})
    with pytest.raises(agent_envs.ResetNeeded):
        env.step("look")


def test_only_unusable_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GameSet, "annotations", lambda self, task_id: ('a "b"', "c;"))
    with pytest.raises(UnsupportedGame, match="none of its sentences"):
        make(goal_source="human").reset(options={"task_id": MUG})


def test_published_games_have_usable_sentences(real_games: GameSet) -> None:
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None, goal_source="human")
    for task_id in real_games.task_ids()[::25]:
        text, info = env.reset(seed=1, options={"task_id": task_id})
        assert text.endswith(info["goal"])
        assert info["goal"][:-1] in real_games.annotations(task_id)


# ---------------------------------------------------------------------- snapshots of both

VARIED: list[dict[str, Any]] = [
    {"domain_randomization": True},
    {"goal_source": "human"},
    {"domain_randomization": True, "goal_source": "human", "extras": ("inventory",)},
]


@pytest.mark.parametrize("options", VARIED)
def test_a_variant_survives_snapshots_forks_and_copies(
    told: GameSet, options: dict[str, Any]
) -> None:
    env = make(data=told, task_ids=[MUG], **options)
    _, info = env.reset(seed=5)
    walk(env, info, random.Random(1), 6)
    snap = agent_envs.snapshot(env)
    assert agent_envs.Snapshot.from_bytes(snap.to_bytes()) == snap
    others = [make(data=told, task_ids=[MUG], **options) for _ in range(2)]
    for seed, other in enumerate(others):
        other.reset(seed=seed + 30)
    unlike, fresh = others[0], make(data=told, task_ids=[MUG], **options)
    answer = agent_envs.restore(unlike, snap)
    assert agent_envs.restore(fresh, agent_envs.Snapshot.from_bytes(snap.to_bytes())) == answer
    expected = walk(env, answer[1], random.Random(2), 70)  # into the next episodes
    for other in (unlike, fresh):
        assert agent_envs.snapshot(other) == snap
    made = [agent_envs.fork(unlike), copy.deepcopy(unlike), unlike, fresh]
    for other in made:
        assert walk(other, answer[1], random.Random(2), 70) == expected
    agent_envs.restore(env, snap)
    assert agent_envs.snapshot(env) == snap


def test_a_variant_restores_in_a_fresh_process(tmp_path: Path) -> None:
    root = tree(tmp_path)
    options = {"domain_randomization": True, "goal_source": "human"}
    env = make(data=root, **options)
    env.reset(seed=2, options={"task_id": MUG})
    env.step("go to fridge 1")
    snap = agent_envs.snapshot(env)
    code = (
        "import sys, gymnasium, agent_envs\n"
        "env = gymnasium.make('SeroALFWorld-v0', data=sys.argv[1])\n"
        "snap = agent_envs.Snapshot.from_bytes(bytes.fromhex(sys.argv[2]))\n"
        "print(repr(agent_envs.restore(env, snap)))\n"
        "print(agent_envs.snapshot(env) == snap, repr(env.step('open fridge 1')))"
    )
    printed = run_python(code, str(root), snap.to_bytes().hex())
    answer = agent_envs.restore(env, snap)
    assert printed == f"{answer!r}\nTrue {env.step('open fridge 1')!r}\n"


def test_a_plain_env_takes_over_a_variant_and_gives_it_back(told: GameSet) -> None:
    env = make(data=told)
    plain = env.reset(seed=1, options={"task_id": MUG})
    own = agent_envs.snapshot(env)
    other = make(data=told, domain_randomization=True, goal_source="human", goal_index=0)
    other.reset(seed=1, options={"task_id": MUG})
    _, info = agent_envs.restore(env, agent_envs.snapshot(other))
    assert info["goal"] == SAID[0] + "."
    assert agent_envs.restore(env, own) == plain
    assert env.unwrapped.privileged().game is told.load(MUG)


def forged(snap: agent_envs.Snapshot, engine: tuple[Any, ...]) -> agent_envs.Snapshot:
    return replace(snap, state=(engine, *snap.state[1:]))


def test_forged_variants_are_refused_and_change_nothing(told: GameSet) -> None:
    env = make(data=told, goal_source="human", domain_randomization=True)
    env.reset(seed=3, options={"task_id": MUG})
    snap = agent_envs.snapshot(env)
    mark, naming, goal, sentence, state = snap.state[0]
    assert (mark, sentence) == (MARK, SAID[goal])
    for engine in (
        (mark, -1, goal, sentence, state),
        (mark, 1 << 63, goal, sentence, state),
        (mark, True, goal, sentence, state),
        (mark, "1", goal, sentence, state),
        (mark, naming, 2, sentence, state),
        (mark, naming, 99, sentence, state),
        (mark, naming, -1, sentence, state),
        (mark, naming, goal, "Do as I say", state),
        (mark, naming, goal, 'Do "x"', state),
        (mark, naming, goal, None, state),
        (mark, naming, None, sentence, state),
        (mark, None, None, "", state),
        (mark, naming, goal, sentence, tuple(state)[:-1]),
        (mark, naming, goal, sentence, 7),
        (mark, naming, goal, sentence),
        (mark,),
        (),
    ):
        with pytest.raises(SnapshotMismatch):
            agent_envs.restore(env, forged(snap, engine))
        assert agent_envs.snapshot(env) == snap
    good = (mark, naming + 1, 3 - goal, SAID[3 - goal], tuple(state))
    agent_envs.restore(env, forged(snap, good))
    assert agent_envs.snapshot(env).state[0] == good
