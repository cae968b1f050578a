"""Small sets of games for tests of the env, with people's sentences, and ways to play them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import gymnasium

from agent_envs.alfworld.games import GameSet
from tests.agent_envs.alfworld.household import LOOK, PUT, payload
from tests.agent_envs.alfworld.trees import TREE, trajectory, write

PEN = "train/pick_and_place_simple-Pen-None-Shelf-1/t"
MUG = "train/pick_and_place_simple-Mug-None-Shelf-1/t"
LAMP = "valid_seen/look_at_obj_in_light-Mug-None-DeskLamp-1/t"
SAID = ("Put a mug on the shelf. ", 'Say "mug"', "\ndrop it", "Move the cup to the shelf")
"""People's sentences of `MUG`; the grammar cannot hold the second and the third."""

ENGINES = ("native", "textworld")


def game_set() -> GameSet:
    """Three games, without trajectories."""
    return GameSet.from_games(
        [
            (MUG, "train", payload()),
            (PEN, "train", payload(PUT.format(obj="PenType", rec="DrawerType"), "put pens away")),
            (LAMP, "valid_seen", payload(LOOK.format(obj="MugType"), "look at the mug")),
        ]
    )


def tree(root: Path) -> Path:
    """The same as a tree; `MUG` has sentences of people."""
    games = game_set()
    for task_id in games.task_ids():
        content = trajectory(games.meta(task_id).task_type)
        if task_id == MUG:
            content["turk_annotations"] = {"anns": [{"task_desc": text} for text in SAID]}
        write(root / TREE / task_id, dict(games.payload(task_id)), content)
    return root


def make(**options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make("SeroALFWorld-v0", **{"data": game_set(), **options})


def seen(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """An answer of `reset`, `step` or `restore` without what names the engine."""
    *rest, info = answer
    return (*rest, {key: value for key, value in info.items() if key != "provenance"})


def walk(env: gymnasium.Env[str, str], info: dict[str, Any], rng: Random, steps: int) -> list[Any]:
    """Random commands, some of them refused; a finished episode is followed by `reset()`."""
    trace: list[Any] = []
    for _ in range(steps):
        listed = info["admissible_actions"]
        command = rng.choice(listed) if rng.random() < 0.8 else rng.choice(("", "dance", "go to"))
        trace.append((command, *env.step(command)))
        info = trace[-1][-1]
        if info["stop_reason"] is not None:
            trace.append(env.reset())
            info = trace[-1][-1]
    return trace
