"""Scripts for `oracles.scripted` from games and from recorded transcripts.

A transcript is a file of JSON lines, plain or ``.gz``, one episode a line, as `sero verify` reads
it. Commands that were refused are left out, since they changed nothing and an oracle may not give
them; the others are spelt as the env lists them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import PrivilegedView
from agent_envs.errors import CorruptData
from agent_envs.json_lines import json_lines
from agent_envs.webshop.actions import BACK_TO_SEARCH, CLICK, SEARCH, click, parse
from agent_envs.webshop.catalogue import GoalSet, goal_from_dict
from agent_envs.webshop.model import Goal, PrivilegedShop
from agent_envs.webshop.states import goal_id
from oracles.scripted import TaskOf


@dataclass(frozen=True, slots=True)
class Recording:
    """What one episode did."""

    task_id: str
    commands: tuple[str, ...]
    score: float
    """ALFWorld: 1 if it was won, else 0. WebShop: the reward of the purchase, 0 without one."""
    goal: Goal | None = None
    """WebShop's, to be played with ``reset(options={"goal": ...})``."""


# ------------------------------------------------------------------ tasks


def alfworld_tasks(games: GameSet, task_ids: Iterable[str]) -> TaskOf:
    """Tells these games apart by their contents, however their things are numbered.

    Raises:
        TaskNotFound: an id that is not in the set.
    """
    known = {games.load(task_id).revision: task_id for task_id in task_ids}

    def task_of(view: Any) -> str | None:
        return known.get(view.game.revision) if isinstance(view, PrivilegedView) else None

    return task_of


def webshop_tasks(goals: GoalSet, task_ids: Iterable[str]) -> TaskOf:
    """Tells these goals apart by their sentence; of several with one sentence it knows the first.

    Raises:
        TaskNotFound: an id that is not in the set.
    """
    known: dict[str, str] = {}
    for task_id in task_ids:
        known.setdefault(goal_id(goals.goal(task_id)), task_id)

    def task_of(view: Any) -> str | None:
        return known.get(goal_id(view.goal)) if isinstance(view, PrivilegedShop) else None

    return task_of


def webshop_sentence(view: Any) -> str | None:
    """The task of a shopper by its sentence alone: the id under which a goal is recorded."""
    return goal_id(view.goal) if isinstance(view, PrivilegedShop) else None


# ------------------------------------------------------------------ scripts


def walkthroughs(games: GameSet, task_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The plans that games are shipped with; games without one are left out.

    Raises:
        TaskNotFound: an id that is not in the set.
    """
    found = {task_id: games.walkthrough(task_id) for task_id in task_ids}
    return {task_id: plan for task_id, plan in found.items() if plan is not None}


def best_scripts(recordings: Iterable[Recording], least: float = 0.0) -> dict[str, tuple[str, ...]]:
    """For each task the recording of the highest score, of several the shortest, then the first.

    Args:
        recordings: in order.
        least: score below which a recording is not taken.
    """
    best: dict[str, Recording] = {}
    for one in recordings:
        other = best.get(one.task_id)
        rank = (one.score, -len(one.commands))
        if one.score >= least and (other is None or rank > (other.score, -len(other.commands))):
            best[one.task_id] = one
    return {task_id: one.commands for task_id, one in best.items()}


def read_alfworld(path: str | os.PathLike[str]) -> list[Recording]:
    """The episodes of a transcript of ALFWorld, each up to where it is won.

    A line is ``{"game": path in the tree, "steps": [{"action", "admissible", "won", ...}, ...]}``,
    the first step is the reset, with the action null.

    Raises:
        MissingData: no such file.
        CorruptData: not such a transcript; the message names the line.
    """
    recordings = []
    for number, episode in json_lines(Path(path), "transcripts"):
        try:
            folder = PurePosixPath(episode["game"]).parent
            task_id = "/".join(folder.parts[-3:])
            commands, won = _alfworld_commands(episode["steps"])
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _corrupt(path, number, error) from error
        recordings.append(Recording(task_id, commands, float(won)))
    return recordings


def _alfworld_commands(steps: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], bool]:
    commands: list[str] = []
    for before, step in pairwise(steps):
        if before["won"]:
            break
        action = step["action"].strip()
        if action in before["admissible"]:
            commands.append(action)
        elif step["admissible"] != before["admissible"]:
            raise ValueError(f"{action!r} was not admissible and changed something")
    return tuple(commands), any(step["won"] for step in steps)


def read_webshop(path: str | os.PathLike[str]) -> list[Recording]:
    """The episodes of a transcript of WebShop. Their ids are those of `webshop_sentence`.

    A search from another page than the first, which the original takes without offering it,
    becomes a click on "Back to Search" and the search.

    A line is ``{"goal", "steps": [{"action", "observation", "reward", "done", "available"}, ...]}``
    (docs/webshop.md); the first line may be ``{"meta": ...}``.

    Raises:
        MissingData: no such file.
        CorruptData: not such a transcript; the message names the line.
    """
    recordings = []
    for number, episode in json_lines(Path(path), "transcripts"):
        try:
            if "meta" in episode:
                continue
            goal = goal_from_dict(episode["goal"])
            steps = episode["steps"]
            commands = _webshop_commands(steps)
            score = float(steps[-1]["reward"]) if steps[-1].get("done") else 0.0
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _corrupt(path, number, error) from error
        recordings.append(Recording(goal_id(goal), commands, score, goal))
    return recordings


def _webshop_commands(steps: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    commands: list[str] = []
    for before, step in pairwise(steps):
        has_search_bar, clickables = before["available"]
        offered = [text.lower() for text in clickables if not has_search_bar]
        verb, argument = parse(step["action"]) or ("", "")
        argument = argument.lower()
        if verb == SEARCH and (has_search_bar or BACK_TO_SEARCH in offered):
            back = () if has_search_bar else (click(BACK_TO_SEARCH),)
            commands += (*back, f"{SEARCH}[{argument}]")
        elif verb == CLICK and argument in offered:
            commands.append(click(argument))
        elif step["observation"] != before["observation"]:
            raise ValueError(f"{step['action']!r} was not offered and changed something")
    return tuple(commands)


def _corrupt(path: str | os.PathLike[str], number: int, error: Exception) -> CorruptData:
    return CorruptData(f"{os.fspath(path)}: line {number} is no transcript: {error!r}.")
