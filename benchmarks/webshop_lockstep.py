"""The original WebShop and ours side by side on a catalogue: do they say the same, step for step?

    python benchmarks/webshop_lockstep.py --original WebShop --data path/to/raw --n 100
    python benchmarks/webshop_lockstep.py ... --mode text_rich --human --attributes --history 2

Runs a checkout of princeton-nlp/WebShop (extra `webshop-reference`) on the raw files, with the
results of our search in place of Lucene's, and walks both through the same goals with the same
seeded actions, odd ones among them. Compares the goals, and after every action observation,
clickables in their order, search bar, reward with its parts, and whether the episode is over.
Prices and price limits are the original's. With `--compat` the walks also take what only the
compatible mode reproduces: see `ODD_IN_COMPAT`.
Exit code 0: no difference; 1: there is one, and the first of them are shown; 2: nothing compared.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

import agent_envs  # noqa: F401 - registers the env
from agent_envs.errors import SeroError
from agent_envs.webshop.catalogue import Shop, goal_to_dict, load_shop
from agent_envs.webshop.catalogue.sources import find_raw
from agent_envs.webshop.original.peer import OriginalShop, Reply
from agent_envs.webshop.urls import session_name
from trainer.bench.webshop_walks import Shopper, click

SHOWN = 8
ODD_SHARE = 0.15
ODD = (
    "look",
    "",
    "SEARCH[shoes]",
    "search[]",
    "click[]",
    "click[search]",
    "click[nothing of the kind]",
    "click[< Prev]",
    "click[Back to Search]",
    "search[RED Shoes]",
    "search[zzzzqq]",
    "search[the of and]",
    "search[  two  spaces ]",
    "search[caf\u00e9 na\u00efve \u00df \U0001f600]",
    "search[a 'quoted' \"word\" & <b>more</b> {{ 1 + 1 }}]",
    "search[a/b?c=d#e%20f+g]",
    "search[women's size 8.5 x 10]",
)
"""Actions that both modes answer as the original does."""
ODD_IN_COMPAT = (
    "search[a [b]]",
    "search[a] and more",
    "please search[a]",
    "search[a\nb]",
    "search[a]\nb",
    "search[search_results]",
    "search[item_page lamp]",
    "search[item_sub_page done]",
    "search[done]",
    "search[<c> garden]",
    "search[<c> garden table]",
    "search[<c> nothing]",
    "search[<q> {query}]",
    "search[<q> nothing]",
)
"""Actions that only the compatible mode answers as the original does."""
_SEARCH = re.compile(r"search\[(.+)\]")


class MixedShopper:
    """A `Shopper` that now and then does something odd, or goes back to what it did."""

    def __init__(self, goal: Mapping[str, Any], rng: random.Random, compat: bool) -> None:
        self._plain = Shopper(goal["instruction_text"], rng)
        self._rng = rng
        extra = ODD_IN_COMPAT if compat else ()
        self._odd = [text.replace("{query}", goal["query"]) for text in (*ODD, *extra)]
        self._target = goal["asin"].lower()

    def choose(self, page: Reply) -> str:
        """The next action on a page of the original."""
        draw = self._rng.random()
        if draw < ODD_SHARE:
            return self._rng.choice(self._odd)
        if draw < 2 * ODD_SHARE and self._target in page.clickables:
            return click(self._target)
        if draw < 2 * ODD_SHARE and page.clickables:
            return click(self._rng.choice(page.clickables))
        return self._plain.choose(page.has_search_bar, page.clickables)


def compare_goals(
    shop: Shop, kind: str, goals: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Differences between our goals and the original's, number by number.

    Price limits are drawn and left out; of the sentence the part before the limit is compared.
    """
    ours = shop.goals(kind)  # type: ignore[arg-type]
    if len(ours) != len(goals):
        return [_difference(kind, 0, None, "number of goals", len(goals), len(ours))]
    differences = []
    for number, goal in enumerate(goals):
        found, expected = dict(goal_to_dict(ours[number])), dict(goal)
        for side in (found, expected):
            side.pop("price_upper")
            side["instruction_text"] = side["instruction_text"].split(", and price lower")[0]
            side["goal_options"] = side["goal_options"] or None  # none have no form
        for key in expected:
            if found.get(key) != expected[key]:
                differences.append(
                    _difference(f"{kind}-{number}", 0, None, key, expected[key], found.get(key))
                )
    return differences


def compare_page(
    reply: Reply,
    observation: str,
    reward: float,
    done: bool,
    info: Mapping[str, Any],
    clickables: tuple[str, ...],
) -> dict[str, tuple[Any, Any]]:
    """What differs after an action: name -> (the original's, ours).

    `clickables` are ours, with those that no action can name.
    """
    parts = info["reward_info"]
    pairs = {
        "observation": (reply.observation, observation),
        "clickables": (
            tuple(text for text in reply.clickables if text != "search"),
            clickables,
        ),
        "search bar": (reply.has_search_bar, bool(info["action_templates"])),
        "reward": (reply.reward, reward),
        "done": (reply.done, done),
    }
    if reply.done or done:
        pairs["reward info"] = (reply.reward_info, None if parts is None else dict(parts))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Lockstep:
    """Both sides and what was found."""

    def __init__(self, shop: Shop, original: OriginalShop, env: Any, compat: bool) -> None:
        self.shop, self.original, self.env, self.compat = shop, original, env, compat
        self.steps = 0
        self.differences: list[dict[str, Any]] = []
        self.met: Counter[str] = Counter()

    def walk(self, name: str, goal: Mapping[str, Any], steps: int, rng: random.Random) -> bool:
        """Walk on a goal until it is bought or something differs; whether nothing did."""
        observation, info = self.env.reset(seed=0, options={"goal": dict(goal)})
        reply = self.original.reset(goal, session_name(info["task_id"]))
        shopper = MixedShopper(goal, rng, self.compat)
        action, reward, done, bought = None, 0.0, False, 0
        for step in range(steps + 1):
            seen = self.env.unwrapped.privileged().session
            clickables = self.env.unwrapped.engine.view(seen).clickables
            found = compare_page(reply, observation, reward, done, info, clickables)
            if found:
                self.differences += [
                    _difference(name, step, action, what, *pair) for what, pair in found.items()
                ]
                return False
            bought += done
            # The original can be played on after a purchase, and compatible ours as well.
            if step == steps or (done and not self.compat) or bought > 1:
                return True
            action = shopper.choose(reply)
            self._teach(action)
            reply = self.original.step(action)
            observation, reward, done, _, info = self.env.step(action)
            self.steps += 1
            self.met[self._kind(action, reply, info)] += 1
        return True

    def _teach(self, action: str) -> None:
        match = _SEARCH.match(action)
        if match:
            query = match[1].lower()
            found = self.shop.index.search(query)
            self.original.teach({query: [self.shop.catalogue[n].asin for n in found]})

    def _kind(self, action: str, reply: Reply, info: Mapping[str, Any]) -> str:
        if not info["command_valid"]:
            return "refused"
        if reply.done:
            return "purchase"
        return action.partition("[")[0]


def run(options: argparse.Namespace, progress: Any = print) -> dict[str, Any]:
    """Compare as the command line asks; the counts."""
    kind = "human" if options.human else "synthetic"
    shop = load_shop(options.data)
    common = {"num_prev_obs": options.history, "num_prev_actions": options.history}
    with OriginalShop(
        options.original,
        find_raw(options.data),
        seed=options.seed,
        observation_mode=options.mode,
        human_goals=options.human,
        show_attrs=options.attributes,
        **common,
    ) as original:
        shop = shop.with_prices(original.prices())
        goals = original.goals()
        env = gymnasium.make(
            "SeroWebShop-v0",
            data=shop,
            split=None,
            goal_source=kind,
            observation_mode=options.mode,
            show_attributes=options.attributes,
            compat=options.compat,
            max_steps=None,
            **common,
        )
        pair = Lockstep(shop, original, env, options.compat)
        pair.differences += compare_goals(shop, kind, goals)
        progress(f"{len(goals)} goals compared, {len(pair.differences)} fields differ")
        rng = random.Random(options.seed)
        chosen = rng.sample(range(len(goals)), min(options.n, len(goals)))
        equal = 0
        for turn, number in enumerate(chosen):
            walk_rng = random.Random(f"{options.seed}/{number}")
            equal += pair.walk(f"{kind}-{number}", goals[number], options.steps, walk_rng)
            if (turn + 1) % 20 == 0:
                progress(f"{turn + 1} goals, {equal} equal")
        env.close()
    return {
        "source": shop.source,
        "revision": shop.revision,
        "mode": options.mode,
        "compat": options.compat,
        "goals": len(chosen),
        "steps": pair.steps,
        "goals_that_differ": len(chosen) - equal,
        "differences": pair.differences[:SHOWN],
        "fields_that_differ": dict(Counter(str(d["what"]) for d in pair.differences)),
        "met": dict(sorted(pair.met.items())),
        "seed": options.seed,
    }


def _difference(
    name: str, step: int, action: str | None, what: str, expected: Any, found: Any
) -> dict[str, Any]:
    return {
        "goal": name,
        "step": step,
        "action": action,
        "what": what,
        "original": expected,
        "ours": found,
    }


def report(figures: Mapping[str, Any]) -> None:
    """Print the counts for people."""
    for difference in figures["differences"]:
        print(f"\n{difference['goal']}, step {difference['step']}: {difference['action']!r}")
        for key in ("what", "original", "ours"):
            print(f"  {key:10}{difference[key]!r}")
    print(f"\nmet, in steps: {', '.join(f'{k} {v}' for k, v in figures['met'].items())}")
    print(
        f"{figures['goals']} goals, {figures['steps']} steps, mode {figures['mode']}"
        f"{', compatible' if figures['compat'] else ''}: {figures['goals_that_differ']} goals "
        f"differ; by field: {figures['fields_that_differ'] or 'none'}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Parse the command line and compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--original", required=True, help="checkout of princeton-nlp/WebShop")
    parser.add_argument("--data", type=Path, required=True, help="folder of the raw files")
    parser.add_argument("--mode", default="text", choices=("text", "text_rich", "url"))
    parser.add_argument("--human", action="store_true", help="human goals")
    parser.add_argument("--attributes", action="store_true", help="show the attributes tab")
    parser.add_argument("--history", type=int, default=0, help="earlier pages and actions shown")
    parser.add_argument("--compat", action="store_true", help="our compatible mode")
    parser.add_argument("--n", type=int, default=100, help="how many goals (default: 100)")
    parser.add_argument("--steps", type=int, default=25, help="actions per goal (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="of goals and walks (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args(words)
    try:
        figures = run(options)
    except SeroError as error:
        print(error, file=sys.stderr)
        return 2
    report(figures)
    if options.json:
        print(json.dumps(figures))
    if figures["differences"]:
        return 1
    return 0 if figures["steps"] else 2


if __name__ == "__main__":
    sys.exit(main())
