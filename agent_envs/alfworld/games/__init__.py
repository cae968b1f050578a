"""Games: where they come from, what a set of them holds, how they are kept and fetched."""

from agent_envs.alfworld.games.game_index import GameRef, SkipReason
from agent_envs.alfworld.games.game_set import GameSet, parse_task_types
from agent_envs.alfworld.games.sources import OWN_VARIABLE, VARIABLE, load_game_set

__all__ = [
    "OWN_VARIABLE",
    "VARIABLE",
    "GameRef",
    "GameSet",
    "SkipReason",
    "load_game_set",
    "parse_task_types",
]
