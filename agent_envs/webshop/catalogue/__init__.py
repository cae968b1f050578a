"""Products and goals: cleaning, numbering, prices, splits, and where they are kept."""

from agent_envs.webshop.catalogue.catalogue import Catalogue
from agent_envs.webshop.catalogue.goal_dicts import goal_from_dict, goal_to_dict
from agent_envs.webshop.catalogue.goal_set import GoalRef, GoalSet, TaskIds
from agent_envs.webshop.catalogue.goals import KINDS, GoalList, Kind
from agent_envs.webshop.catalogue.importing import RawFiles, import_files
from agent_envs.webshop.catalogue.shop import Shop
from agent_envs.webshop.catalogue.sources import VARIABLE, load_shop

__all__ = [
    "KINDS",
    "VARIABLE",
    "Catalogue",
    "GoalList",
    "GoalRef",
    "GoalSet",
    "Kind",
    "RawFiles",
    "Shop",
    "TaskIds",
    "goal_from_dict",
    "goal_to_dict",
    "import_files",
    "load_shop",
]
