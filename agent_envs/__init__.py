"""Text environments for reinforcement learning of language-model agents.

Importing the package registers its ids with Gymnasium:

    >>> import agent_envs, gymnasium
    >>> "SeroALFWorld-v0" in gymnasium.registry
    True
"""

from __future__ import annotations

import gymnasium

from agent_envs.core import TextEnv
from agent_envs.errors import (
    CorruptData,
    CorruptGame,
    DataError,
    IncompatibleExtra,
    InvalidOption,
    MissingData,
    MissingExtra,
    ObservationTooLong,
    PrivilegedAccess,
    ResetNeeded,
    SeroError,
    SnapshotError,
    SnapshotFormatError,
    SnapshotMismatch,
    TaskNotFound,
    UnknownWrapperState,
    UnsupportedGame,
    WorkerError,
)
from agent_envs.forking import fork, remaining_steps, restore, snapshot
from agent_envs.frozen import FrozenDict
from agent_envs.snapshots import Snapshot
from agent_envs.spaces import AnyText
from agent_envs.vector import TextVectorEnv, make_vec
from agent_envs.wrapper_state import register_stateless_wrapper, register_wrapper_state

__all__ = [
    "AnyText",
    "CorruptData",
    "CorruptGame",
    "DataError",
    "FrozenDict",
    "IncompatibleExtra",
    "InvalidOption",
    "MissingData",
    "MissingExtra",
    "ObservationTooLong",
    "PrivilegedAccess",
    "ResetNeeded",
    "SeroError",
    "Snapshot",
    "SnapshotError",
    "SnapshotFormatError",
    "SnapshotMismatch",
    "TaskNotFound",
    "TextEnv",
    "TextVectorEnv",
    "UnknownWrapperState",
    "UnsupportedGame",
    "WorkerError",
    "fork",
    "make_vec",
    "register_stateless_wrapper",
    "register_wrapper_state",
    "remaining_steps",
    "restore",
    "snapshot",
]

_ENVS = {
    "SeroALFWorld-v0": ("agent_envs.alfworld.env:ALFWorldEnv", "alfworld_vector_env"),
    "SeroWebShop-v0": ("agent_envs.webshop.env:WebShopEnv", "webshop_vector_env"),
    # No vector env of its own: a browser for each sub-env costs the same anywhere.
    "SeroWebShopBrowser-v0": ("agent_envs.webshop.browser.env:WebShopBrowserEnv", None),
}
for _id, (_entry, _vector) in _ENVS.items():
    if _id not in gymnasium.registry:
        # No max_episode_steps: the env owns its budget (`max_steps`). A TimeLimit given to
        # `gymnasium.make` works on top of it. No checker: that of Gymnasium 1.4 makes every step
        # fail after a first reset that failed, say on a mistyped task id. `agent_envs.testing`
        # checks more.
        gymnasium.register(
            _id,
            entry_point=_entry,
            vector_entry_point=None if _vector is None else f"agent_envs.vector:{_vector}",
            disable_env_checker=True,
        )
