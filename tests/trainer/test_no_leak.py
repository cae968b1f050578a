"""Nothing that the student cannot see reaches a prompt: two worlds that differ only in it.

The second world is the first with unseen objects moved to other closed receptacles. Driven by
the same commands, both must show byte-identical prompts up to and including the first prompt
after which their observations differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from oracles.base import Decision, History, PlanStatus
from tests.trainer import small
from trainer.branches.branching import grow
from trainer.branches.records import GrownRoot, RootChoice
from trainer.config import Config
from trainer.rollouts.rollout import Episode, PlaySettings, Trajectory, play
from trainer.worlds.tasks import make_env, split_tasks


def _config() -> Config:
    return small.small_config(env__max_steps=20, env__generated__train=40, auxiliary__sero={})


@dataclass(frozen=True)
class _Pair:
    """One task in both worlds, and the receptacles that an object moved from and to."""

    task_id: str
    left: GameSet
    right: GameSet
    source: str
    target: str


def _move_hidden(payload: Mapping[str, Any]) -> tuple[dict[str, Any], str, str] | None:
    """The game with one hidden object in another closed receptacle; None where there is none."""
    game = compile_game(payload)
    closed = [i for i in range(len(game.recs)) if game.openable >> i & 1]
    problem = payload["pddl_problem"]
    for source in closed:
        inside = [o for o in range(len(game.objs)) if game.start.contents[source] >> o & 1]
        for o in inside:
            for target in closed:
                room = game.can_hold[target] >> o & 1
                if target == source or not room or game.rec_loc[target] == game.rec_loc[source]:
                    continue
                changed = _replaced(problem, game, o, source, target)
                if changed is not None:
                    return (
                        {**payload, "pddl_problem": changed},
                        game.recs[source],
                        game.recs[target],
                    )
    return None


def _replaced(problem: str, game: Any, o: int, source: int, target: int) -> str | None:
    """The problem text with both facts about the object's place rewritten."""
    name, old, new = game.obj_ids[o], game.rec_ids[source], game.rec_ids[target]
    spell = re.compile(rf"\(inReceptacle\s+{re.escape(name)}\s+{re.escape(old)}\)", re.IGNORECASE)
    if len(spell.findall(problem)) != 1:
        return None
    places = {
        rec: re.search(
            rf"\(receptacleAtLocation\s+{re.escape(rec)}\s+(\S+?)\s*\)", problem, re.IGNORECASE
        )
        for rec in (old, new)
    }
    if None in places.values():
        return None
    at = re.compile(rf"\(objectAtLocation\s+{re.escape(name)}\s+\S+?\s*\)", re.IGNORECASE)
    if len(at.findall(problem)) != 1:
        return None
    where = places[new].group(1)  # type: ignore[union-attr]
    problem = at.sub(f"(objectAtLocation {name} {where})", problem)
    return spell.sub(f"(inReceptacle {name} {new})", problem)


@lru_cache(maxsize=1)
def _pairs() -> tuple[_Pair, ...]:
    config = _config()
    from trainer.worlds.tasks import open_tasks

    games = open_tasks(config.env)
    pairs = []
    for task_id in split_tasks(config.env, games, "train"):
        payload = games.payload(task_id)
        moved = _move_hidden(payload)
        if moved is None:
            continue
        sets = [GameSet.from_games([(task_id, "train", p)]) for p in (payload, moved[0])]
        pairs.append(_Pair(task_id, sets[0], sets[1], moved[1], moved[2]))
    assert len(pairs) >= 5, "too few households have a hidden object that can be moved"
    return tuple(pairs[:8])


def _drive(games: GameSet, pair: _Pair, commands: list[str]) -> Trajectory:
    script: Iterator[str] = iter(commands)
    config = _config()
    (trajectory,) = play(
        [Episode(pair.task_id, "g", "t", 0)],
        [make_env(config.env, games, "train")],
        small.student(config),
        small.CommandSampler(lambda request, prompt: next(script, "look")),
        PlaySettings(64, snapshots=True),
    )
    return trajectory


def _commands(pair: _Pair) -> list[str]:
    """Harmless steps first; then the receptacle whose content differs is opened."""
    elsewhere = ["inventory", "look", "go to nowhere 1", f"go to {pair.target}"]
    return [*elsewhere, "look", f"go to {pair.source}", f"open {pair.source}", "look"]


def _first_difference(left: list[str], right: list[str]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)


@pytest.mark.parametrize("number", range(5))
def test_rollout_prompts_depend_on_what_was_seen_alone(number: int) -> None:
    pair = _pairs()[number]
    commands = _commands(pair)
    left, right = (_drive(games, pair, commands) for games in (pair.left, pair.right))
    seen = [[turn.next_observation for turn in t.turns] for t in (left, right)]
    split = _first_difference(*seen)
    assert split == commands.index(f"open {pair.source}"), "only opening may tell the worlds apart"
    for a, b in zip(left.turns[: split + 1], right.turns[: split + 1], strict=True):
        assert a.prompt_ids == b.prompt_ids
        assert a.admissible == b.admissible
    assert left.turns[split + 1].prompt_ids != right.turns[split + 1].prompt_ids


class _Fixed:
    """A privileged oracle with a fixed script that also looks at everything it is given."""

    privileged = True

    def __init__(self, commands: list[str]) -> None:
        self.commands = commands
        self.views: list[Any] = []

    def start(self, view: Any, history: History) -> int:
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        self.views.append(view)
        return Decision(PlanStatus.FOUND, self.commands[state % len(self.commands)]), state + 1


def _branch(games: GameSet, trajectory: Trajectory, t: int, commands: list[str]) -> GrownRoot:
    config = _config()
    oracle = _Fixed(commands)
    root = grow(
        RootChoice(0, t),
        trajectory,
        make_env(config.env, games, "train"),
        oracle,
        small.student(config),
        config.replace(
            **{"auxiliary.sero.max_depth": len(commands), "auxiliary.sero.return_scale": 1.0}
        ).auxiliary.sero,
        64,
    )
    assert all(view is not None for view in oracle.views)
    return root


@pytest.mark.parametrize("number", range(5))
def test_branch_prompts_depend_on_what_was_seen_alone(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fixed script does not win; the gate is opened so that its rows are made all the same.
    monkeypatch.setattr("trainer.branches.branching.gate", lambda *_: 1.0)
    pair = _pairs()[number]
    oracle = [f"go to {pair.target}", f"go to {pair.source}", f"open {pair.source}", "inventory"]
    roots = []
    for games in (pair.left, pair.right):
        trajectory = _drive(games, pair, ["inventory", "go to nowhere 1", "look"])
        roots.append(_branch(games, trajectory, 3, oracle))
    left, right = roots
    assert left.valid
    assert right.valid
    assert len(left.rows) == len(right.rows) == 4
    seen = [[step.next_observation for step in root.branch.steps] for root in roots]
    assert _first_difference(*seen) == 2
    assert left.rows[:3] == right.rows[:3]
    assert left.rows[3] != right.rows[3]


def test_the_planner_does_use_what_the_student_cannot_see() -> None:
    """Otherwise the two tests above would say nothing about a privileged oracle."""
    differ = 0
    config = _config()
    brancher_env = [
        (pair, [make_env(config.env, games, "train") for games in (pair.left, pair.right)])
        for pair in _pairs()
    ]
    from oracles.alfworld_planner import ALFWorldPlanner

    for pair, envs in brancher_env:
        plans = []
        for env in envs:
            env.reset(options={"task_id": pair.task_id})
            plans.append(ALFWorldPlanner().plan(env.unwrapped.privileged()).actions)  # type: ignore[attr-defined]
        differ += plans[0] != plans[1]
    assert differ > 0
