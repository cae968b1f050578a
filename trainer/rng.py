"""The purposes of the trainer's random streams, and the streams (`agent_envs.streams`).

Auxiliary code uses purposes of its own and therefore never moves the draws of the base run: arms
of a comparison see the same tasks and the same samples.
"""

from __future__ import annotations

from agent_envs.streams import GENERATE, stream, stream_key

__all__ = [
    "EVALUATE",
    "GENERATE",
    "ROOT",
    "SHUFFLE",
    "TASKS",
    "WARMSTART",
    "stream",
    "stream_key",
]

TASKS = "tasks"
ROOT = "root"
EVALUATE = "evaluate"
WARMSTART = "warmstart"
SHUFFLE = "shuffle"
