"""Shared by the tests of the original's experts."""

from __future__ import annotations

from dataclasses import replace

from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL
from agent_envs.alfworld.model import Game, TaskType


def small_game(kind: TaskType) -> Game:
    games = generate_game_set(3, {"train": 1}, replace(SMALL, task_types=(kind,)))
    return games.load(games.task_ids()[0])
