"""Oracles: what to do next, from any state, and branches that carry it out.

Imports `agent_envs` and never `trainer` or torch.
"""

from oracles.base import (
    Decision,
    History,
    HistoryItem,
    Message,
    Oracle,
    Plan,
    Planner,
    PlanStatus,
    TextModel,
)

__all__ = [
    "Decision",
    "History",
    "HistoryItem",
    "Message",
    "Oracle",
    "Plan",
    "PlanStatus",
    "Planner",
    "TextModel",
]
