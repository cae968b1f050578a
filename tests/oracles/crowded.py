"""A game with far more choices than a search of the ALFWorld planner can go through in time."""

from __future__ import annotations

from agent_envs.alfworld.model import TaskType
from tests.oracles.toy import House, Obj, Rec


def crowded(solvable: bool = True, count: int = 120) -> House:
    """Mugs and room for them everywhere, and hands full of a pen that fits everywhere too.

    The choices of where to drop, take and put multiply to `count` cubed.
    """
    holds = ("Mug", "Pen") if solvable else ("Pen",)
    recs = [Rec("Cabinet", i + 1, holds, openable=True) for i in range(count)]
    objs = [Obj("Mug", (i,)) for i in range(count)]
    return House(TaskType.TWO, recs, [*objs, Obj("Pen")], held=count)
