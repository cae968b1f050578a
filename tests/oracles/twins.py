"""Twin worlds: two that a player cannot tell apart before it sees a thing that differs.

Households differ in where things lie, shops and goals in what is shown nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import Game, bits
from agent_envs.streams import stream
from agent_envs.webshop.catalogue import Shop
from oracles import Decision, History, HistoryItem, Oracle, PlanStatus
from oracles.branch import Branch, RootRecord, run
from tests.oracles.toy_shop import goal_for, item

ALFWORLD, WEBSHOP = "SeroALFWorld-v0", "SeroWebShop-v0"
CANARY = "zzprivilegedzz"
"""A word that only the privileged side of a twin shop has."""

Env = gymnasium.Env[str, str]


@dataclass(frozen=True)
class Twin:
    """One of two worlds, and how its episode begins."""

    env: Env
    options: Mapping[str, Any]


class Script:
    """A privileged oracle that says given commands and reads all that it is given."""

    privileged = True

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = tuple(commands)
        self.views: list[str] = []

    def start(self, view: Any, history: History) -> int:
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        self.views.append(repr(view))
        if state == len(self.commands):
            return Decision(PlanStatus.UNSUPPORTED, None, CANARY), state
        return Decision(PlanStatus.FOUND, self.commands[state], CANARY), state + 1


def branch_in(twin: Twin, student: Sequence[str], oracle: Oracle[Any]) -> Branch:
    """The student gives its commands, then the oracle takes over."""
    observation, info = twin.env.reset(options=dict(twin.options))
    history = []
    for command in student:
        before = observation
        observation, _, _, _, info = twin.env.step(command)
        history.append(HistoryItem(before, command, info["command_valid"]))
    return run(
        agent_envs.fork(twin.env),
        agent_envs.snapshot(twin.env),
        oracle,
        history=tuple(history),
        expected=RootRecord(observation, info["admissible_actions"]),
    )


# ------------------------------------------------------------------ households


def households(games: GameSet, task_ids: Sequence[str]) -> list[tuple[Twin, Twin]]:
    """Each game, and the same with its things in other receptacles."""
    found = []
    for task_id in task_ids:
        payload = games.payload(task_id)
        other = rearranged(payload, stream(0, task=task_id, purpose="twins"))
        if other == payload:
            continue  # there was nothing to be moved
        worlds = []
        for content in (payload, other):
            own = GameSet.from_games([(task_id, "train", content)])
            env = gymnasium.make(ALFWORLD, data=own, max_steps=60)
            worlds.append(Twin(env, {"task_id": task_id}))
        found.append((worlds[0], worlds[1]))
    return found


def rearranged(payload: Mapping[str, Any], draw: np.random.Generator) -> dict[str, Any]:
    """The game with every thing in a receptacle drawn among those that may hold it.

    Where the goal wants things nothing is put: the game would be won.
    """
    game, problem = compile_game(payload), str(payload["pddl_problem"])
    for source, contents in enumerate(game.start.contents):
        for o in bits(contents):
            fitting = [
                rec
                for rec, mask in enumerate(game.can_hold)
                if mask >> o & 1 and not game.goal.receptacles >> rec & 1
            ]
            if fitting:
                target = fitting[int(draw.integers(len(fitting)))]
                problem = _moved(problem, game, o, source, target)
    return {**payload, "pddl_problem": problem}


def _moved(problem: str, game: Game, o: int, source: int, target: int) -> str:
    """Both facts about the place of an object, written anew."""
    name, old, new = game.obj_ids[o], game.rec_ids[source], game.rec_ids[target]
    inside = _fact("inReceptacle", name, re.escape(old))
    place = _fact("objectAtLocation", name, r"\S+?")
    where = re.search(_fact("receptacleAtLocation", new, r"(\S+?)"), problem, re.IGNORECASE)
    if where is None:
        return problem
    for pattern in (inside, place):
        if len(re.findall(pattern, problem, re.IGNORECASE)) != 1:
            return problem
    problem = re.sub(inside, f"(inReceptacle {name} {new})", problem, flags=re.IGNORECASE)
    there = f"(objectAtLocation {name} {where[1]})"
    return re.sub(place, there, problem, flags=re.IGNORECASE)


def _fact(predicate: str, name: str, rest: str) -> str:
    return rf"\({predicate}\s+{re.escape(name)}\s+{rest}\s*\)"


# ------------------------------------------------------------------ shops

SHOPPING = (
    "search[mug]",
    "click[b000000002]",
    "click[description]",
    "click[< prev]",
    "click[features]",
    "click[< prev]",
    "click[blue]",
    "click[< prev]",
    "click[b000000001]",
    "click[buy now]",
)
"""A way over every kind of page that both shops have."""


def shops() -> tuple[Twin, Twin]:
    """Two shops, and goals of one sentence, that differ in what no page of them shows."""
    plain = _shop("mugs", "Home & Kitchen › Dining › Mugs", "hand painted")
    return plain, _shop(f"{CANARY} query", f"{CANARY} › Path", f"{CANARY} attribute")


def _shop(query: str, path: str, attribute: str) -> Twin:
    colours = {"color": ["red", "blue"]}
    listed = [
        item("B000000001", "Red mug", colours, query=query, path=path),
        item("B000000002", "Blue mug, large", colours, query=query, path=path, text="A mug."),
    ]
    asked = {"instruction": "find me a mug", "instruction_attributes": [attribute]}
    own = {entry["asin"]: {"attributes": [attribute], **asked} for entry in listed}
    shop = Shop.from_raw(listed, own)
    env = gymnasium.make(WEBSHOP, data=shop, split=None, max_steps=20)
    if query == "mugs":
        goal = goal_for(shop, "B000000001", (("color", "red"),))
    else:
        wanted = (("color", "blue"), ("style", CANARY))
        goal = goal_for(shop, "B000000002", wanted, (attribute,), cap=30.0)
    return Twin(env, {"goal": goal})
