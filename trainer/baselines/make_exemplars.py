"""Writes the examples of the ReAct prompts: `python -m trainer.baselines.make_exemplars`.

Episodes come from training tasks of households and of a shop that are generated for this alone,
under a seed that nothing else uses. Commands are the oracle's, after one look at a wrong place, so
that the examples show a search; thoughts are worded here. No evaluation loads this module: it needs
`oracles`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_envs.streams import stream
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.webshop_goal import WebShopGoalOracle
from trainer.config import load_config
from trainer.runs.info import write_json
from trainer.worlds.environments import WEBSHOP
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

SEED = 72_001
"""Of the generated data; no default and no benchmark has it."""
PER_TYPE = 2
TRAIN_GAMES = 120
FOLDER = Path(__file__).parent / "exemplars"

_HOUSES = {
    "env.generated.preset": "standard",
    "env.generated.seed": SEED,
    "env.generated.train": TRAIN_GAMES,
    "env.generated.valid_seen": 0,
    "env.generated.valid_unseen": 0,
    "env.max_steps": 30,
}
_SHOP = {"env.id": WEBSHOP, "env.webshop.generated.seed": SEED}
_DO = {
    "pick_and_place_simple": "find {obj_}, take it, and put it in or on the {place}",
    "look_at_obj_in_light": "find {obj_}, take it, and switch on a desklamp while I hold it",
    "pick_clean_then_place_in_recep": (
        "find {obj_}, take it, clean it at a sinkbasin, and put it in or on the {place}"
    ),
    "pick_heat_then_place_in_recep": (
        "find {obj_}, take it, heat it with a microwave, and put it in or on the {place}"
    ),
    "pick_cool_then_place_in_recep": (
        "find {obj_}, take it, cool it with a fridge, and put it in or on the {place}"
    ),
    "pick_two_obj_and_place": (
        "find two {obj}s and bring them to the {place}, one after the other since I carry one thing"
    ),
}


def main() -> None:
    """Writes both files."""
    for world, made in (("alfworld", household_examples()), ("webshop", shop_example())):
        write_json(FOLDER / f"{world}.json", {"format": 1, "seed": SEED, **made})


def household_examples() -> dict[str, Any]:
    """Two for each type of task, those with the shortest text, and the hash of the games."""
    config = load_config({}, _HOUSES).env
    games = open_tasks(config)
    by_type: dict[str, list[dict[str, Any]]] = {}
    for task in split_tasks(config, games, "train"):
        found = _household(make_env(config, games, "train"), task)
        if found is not None:
            by_type.setdefault(found["task_type"], []).append(found)
    examples = [
        example
        for _, of_type in sorted(by_type.items())
        for example in _different(sorted(of_type, key=_size))
    ]
    return {"manifest_hash": games.manifest_hash, "exemplars": examples}


def shop_example() -> dict[str, Any]:
    """A purchase worth 1.0 with options, the one with the shortest text, and the shop's hash."""
    config = load_config({}, _SHOP).env
    goals = open_tasks(config)
    env = make_env(config, goals, "train")
    found = (_purchase(env, task) for task in split_tasks(config, goals, "train")[:60])
    shortest = min((example for example in found if example is not None), key=_size)
    return {"manifest_hash": goals.manifest_hash, "exemplars": [shortest]}


def _different(examples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first `PER_TYPE` with different objects."""
    seen: set[str] = set()
    for example in examples:
        obj = _names(example["task_id"])[0]
        if obj not in seen:
            seen.add(obj)
            yield example
        if len(seen) == PER_TYPE:
            return


def _size(example: dict[str, Any]) -> tuple[int, str]:
    return len(str(example)), example["task_id"]


def _names(task_id: str) -> tuple[str, str]:
    """Object and receptacle of a task, as the text spells them."""
    _, obj, _, place, _ = task_id.split("/")[1].split("-")
    return obj.lower(), place.lower()


def _household(env: Any, task: str) -> dict[str, Any] | None:
    """An episode with one detour; None where the object is met on it."""
    observation, info = env.reset(options={"task_id": task})
    first, kind, goal = observation, info["task_type"], info["goal"]
    obj, place = _names(task)
    planner = ALFWorldPlanner(None)
    plan = planner.plan(env.unwrapped.privileged()).actions
    passed = {command.removeprefix("go to ") for command in plan if command.startswith("go to ")}
    places = [c for c in info["admissible_actions"] if c.startswith("go to ")]
    places = [c for c in places if c.removeprefix("go to ") not in passed and place not in c]
    if not places:
        return None
    detour = places[int(stream(SEED, task=task, purpose="detour").integers(len(places)))]
    commands = [detour]
    steps: list[dict[str, Any]] = []
    thought: str | None = (
        f"I have to {_DO[kind].format(obj=obj, obj_=_a(obj), place=place)}. First I look for "
        f"{_a(obj)}. It may be at {detour.removeprefix('go to ')}, so I start there."
    )
    missing, held = True, False
    while commands:
        command = commands.pop(0)
        observation, _, terminated, _, info = env.step(command)
        steps.append({"thought": thought, "command": command, "observation": observation})
        if terminated:
            break
        if len(steps) == 1 and "is closed" in observation:
            commands = [f"open {detour.removeprefix('go to ')}"]
            thought = "It is closed. I open it."
            continue
        if missing:
            if re.search(rf"\ba {obj} \d", observation):
                return None
            missing = False
            commands = list(planner.plan(env.unwrapped.privileged()).actions)
            if not commands[0].startswith("go to "):
                return None
            thought = f"There is no {obj} here. Next I look at {_goal_of(commands[0])}."
            continue
        thought = None
        following = commands[0]
        if following.startswith("take "):
            thing = following.split(" from ")[0].removeprefix("take ")
            if place in following.split(" from ")[1]:
                return None
            thought = f"Here is {thing}. I take it."
        elif command.startswith("take "):
            held = True
            thought = _after_taking(kind, commands, place)
        elif held and command.split()[0] in ("clean", "heat", "cool"):
            done = {"clean": "clean", "heat": "hot", "cool": "cold"}[command.split()[0]]
            thought = f"It is {done} now. I bring it to {_goal_of(following)}."
        elif command.startswith(("move ", "put ")) and kind == "pick_two_obj_and_place":
            thought = f"One {obj} is in place. Now I need the second {obj}."
    if not terminated or not info["success"] or command.split()[0] not in ("move", "use"):
        return None
    return {
        "task_type": kind, "task_id": task, "goal": goal, "observation": first, "steps": steps
    }  # fmt: skip


def _after_taking(kind: str, commands: list[str], place: str) -> str:
    acts = {
        "pick_clean_then_place_in_recep": "Next I clean it. For that I go to {there}.",
        "pick_heat_then_place_in_recep": "Next I heat it. For that I go to {there}.",
        "pick_cool_then_place_in_recep": "Next I cool it. For that I go to {there}.",
    }
    if kind == "look_at_obj_in_light":
        if commands[0].startswith("use "):
            return "I hold it, and a desklamp is here. I switch it on."
        return f"I hold it. Now I need a desklamp. I look at {_goal_of(commands[0])}."
    text = acts.get(kind, f"I hold it. It belongs to the {place}, so I go to {{there}}.")
    return text.format(there=_goal_of(commands[0]))


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _goal_of(command: str) -> str:
    return command.removeprefix("go to ").removeprefix("open ")


def _purchase(env: Any, task: str) -> dict[str, Any] | None:
    observation, info = env.reset(options={"task_id": task})
    first, goal = observation, info["goal"]
    plan = WebShopGoalOracle(None).plan(env.unwrapped.privileged()).actions
    options = [c.removeprefix("click[").removesuffix("]") for c in plan[2:-1]]
    if len(options) < 2 or not plan[0].startswith("search[") or "next >" in options:
        return None
    steps: list[dict[str, Any]] = []
    terms = goal.split(" with ")[0].removeprefix("Find me ")
    for number, command in enumerate(plan):
        thought = None
        if number == 0:
            thought = f"I need {terms}. I search with the words of the instruction."
        elif number == 1:
            name, price = _title(observation, command)
            thought = f"'{name}' costs {price} and sounds like what is asked for. I open it."
        elif number == 2:
            thought = (
                f"The page lets me choose. The instruction asks for {' and '.join(options)}, so I "
                f"begin with {options[0]}."
            )
        elif number == len(plan) - 1:
            thought = "All that was asked for is chosen, and the price is within the limit. I buy."
        observation, _, _, _, info = env.step(command)
        steps.append({"thought": thought, "command": command, "observation": observation})
    if not info["success"]:
        return None
    # What follows a purchase tells nothing that a shopper needs.
    steps[-1]["observation"] = steps[-1]["observation"].split(" [SEP] ")[0]
    return {
        "task_type": info["task_type"], "task_id": task, "goal": goal,
        "observation": first, "steps": steps,
    }  # fmt: skip


def _title(page: str, command: str) -> tuple[str, str]:
    """Name and price of the product that a command opens."""
    fields = page.split(" [SEP] ")
    asin = command.removeprefix("click[").removesuffix("]")
    place = [field.lower() for field in fields].index(asin)
    return fields[place + 1], fields[place + 2]


if __name__ == "__main__":
    main()
