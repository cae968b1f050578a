"""Replaying transcripts of the original engine: does ours say the same, step for step?

A transcript file holds JSON lines (plain or ``.gz``), one episode each: ``{"game": path of the
game in its tree, "steps": [{"action", "observation", "admissible", "won"}, ...]}``. The first
step is the reset and has the action null.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.alfworld.games.game_files import split_task_trial
from agent_envs.alfworld.model import Game
from agent_envs.alfworld.original.lockstep import Follower, Mismatch
from agent_envs.errors import CorruptData, DataError
from agent_envs.json_lines import json_lines

__all__ = ["DETAILS_LIMIT", "Mismatch", "VerifyResult", "verify_transcripts"]

DETAILS_LIMIT = 20


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Counts of a verification; `details` holds the first differences."""

    episodes: int
    steps: int
    """Commands carried out; the resets are compared as well."""
    mismatches: int
    """Steps (or resets, or whole episodes whose game is missing) that differ."""
    details: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.steps > 0 and self.mismatches == 0


def verify_transcripts(
    transcripts_path: str | os.PathLike[str], games: GameSet | str | os.PathLike[str] | None
) -> VerifyResult:
    """Replay every episode in the native engine and compare text, commands (in order) and won.

    Args:
        transcripts_path: the transcript file.
        games: the games that it was recorded on; see `load_game_set`.

    Raises:
        MissingData: no such file.
        CorruptData: not a transcript file; the message names the line.
    """
    game_set = load_game_set(games)
    episodes = steps = mismatches = 0
    details: list[Mismatch] = []
    for number, episode in json_lines(Path(transcripts_path), "transcripts"):
        episodes += 1
        try:
            path, records = str(episode["game"]), list(episode["steps"])
            task_id = "/".join(split_task_trial(PurePosixPath(path).parent.parts, "transcript"))
            steps += sum(record["action"] is not None for record in records)
            differences = _compare(task_id, game_set, records)
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CorruptData(
                f"{transcripts_path}: line {number} is no transcript: {error!r}."
            ) from error
        mismatches += len({difference.step for difference in differences})
        details.extend(differences[: DETAILS_LIMIT - len(details)])
    return VerifyResult(episodes, steps, mismatches, tuple(details))


def _compare(task_id: str, game_set: GameSet, records: list[Mapping[str, Any]]) -> list[Mismatch]:
    try:
        game: Game = game_set.load(task_id)
    except (DataError, KeyError) as error:
        return [Mismatch(task_id, 0, None, "game", "a playable game", str(error))]
    follower = Follower(task_id, game)
    return [
        difference
        for record in records
        for difference in follower.compare(record["action"], _Recorded(record))
    ]


class _Recorded:
    """A step of a transcript; raises KeyError where it lacks something."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.observation: str = record["observation"]
        self.admissible: list[str] = record["admissible"]
        self.won: bool = record["won"]
