"""Shops and where they come from, under one short name."""

from agent_envs.webshop.catalogue import (
    Catalogue,
    GoalList,
    GoalRef,
    GoalSet,
    Shop,
    goal_from_dict,
    goal_to_dict,
    load_shop,
)

__all__ = [
    "Catalogue",
    "GoalList",
    "GoalRef",
    "GoalSet",
    "Shop",
    "goal_from_dict",
    "goal_to_dict",
    "load_shop",
]
