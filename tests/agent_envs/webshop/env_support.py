"""Starting an environment of WebShop."""

from __future__ import annotations

from typing import Any

from tests.agent_envs.webshop.shops import DESKS, shop

HUMAN: dict[str, Any] = {"goal_source": "human", "split": None}


def start(env: Any, number: int = 0) -> str:
    """Reset on the human goal for a desk; its task id."""
    goals = shop().goals("human")
    place = next(i for i, goal in enumerate(goals) if goal.asin == DESKS[number])
    env.reset(options={"task_id": f"human-{place}"})
    return f"human-{place}"
