"""The WebShop oracle on the published 1,000 products, in the env and beside an exhaustive loop.

Promises:
1. From the start, the purchase is worth what the best combination of the product's options is
   worth, for every synthetic and every human goal; whatever is missing to 1.0 has its reason.
2. The same holds from wherever a player may have got to, as far as the steps left allow it.
3. Every command is admissible or fits a template when it is taken, also through the text adapter.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import gymnasium
import pytest
from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

import agent_envs
from agent_envs.prompting import get_template, parse_plain
from agent_envs.webshop.engine import Rules, engine_of, start
from agent_envs.webshop.model import Goal, Page, PrivilegedShop, Product, Purchase, Session
from agent_envs.webshop.nouns import nouns_named
from agent_envs.webshop.reward import colours, score
from agent_envs.webshop.shop import Shop
from oracles import Plan, PlanStatus
from oracles.branch import BranchStatus, run
from oracles.webshop_goal import WebShopGoalOracle
from tests.support import full_count

pytestmark = pytest.mark.data

ORACLE = WebShopGoalOracle()
COMPAT = Rules(compat=True)
NOUNS = nouns_named("table")
CEILING, STRICT = 0.9896, 0.9337
"""Of the 6,910 synthetic goals: mean reward and share of 1.0 that a purchase of the goal's own
product can reach. docs/webshop_reward.md tells why not more."""


def goals_of(shop: Shop, kind: Any, sample: int) -> Iterator[Goal]:
    """`sample` of the goals, spread evenly; all of them at the full count."""
    listed = shop.goals(kind)
    for number in range(0, len(listed), max(len(listed) // full_count(sample, len(listed)), 1)):
        yield listed[number]


def carried_out(shop: Shop, goal: Goal, session: Session, plan: Plan, rules: Rules) -> Purchase:
    """Every command is on the page, or a search on the first page; the last one buys."""
    engine = engine_of(shop, rules)
    for command in plan.actions:
        page = engine.view(session)
        assert command in page.commands or (
            command.startswith("search[") and session.page == Page.INDEX
        )
        after = engine.advance(session, page, command)
        assert after is not None
        session = after
    assert session.page == Page.DONE
    return engine.purchase(goal, session)


# ------------------------------------------------------------------ everything, the slow way


def shade(option: str | tuple[str, str]) -> str:
    for colour in colours():
        if colour in option:
            return colour
    return str(option)


def plain(text: str) -> str:
    return default_process("".join(letter for letter in text if not 128 <= ord(letter) < 256))


class Matches(dict[tuple[str, Any], bool]):
    """Whether a value matches a wanted option, by the rule as it is published."""

    def __missing__(self, pair: tuple[str, Any]) -> bool:
        value, option = pair
        ratio = token_set_ratio(plain(shade(value)), plain(shade(option)))
        self[pair] = result = round(ratio) > 85
        return result


MATCHES = Matches()


def selections(product: Product, clickable: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Every combination of values that can be selected: of each group one, or none."""
    groups: dict[str, list[str | None]] = {group: [None] for group, _ in product.options}
    for group, value in clickable:
        groups[group].append(value)
    return [
        tuple(value for value in values if value is not None)
        for values in itertools.product(*groups.values())
    ]


def most(goal: Goal, product: Product, price: float, clickable: Sequence[tuple[str, str]]) -> float:
    """The largest reward of all combinations. The other terms do not depend on the selection."""
    bare, _ = score(goal._replace(options=()), product, price, (), NOUNS)
    terms = len(goal.attributes) + 1
    _, info = score(goal, product, price, (), NOUNS)
    base = round(bare * terms / info.r_type) if info.r_type else 0
    best = max(
        sum(any(MATCHES[value, option] for value in values) for option in goal.options)
        for values in selections(product, clickable)
    )
    return (base + best) / (terms + len(goal.options)) * info.r_type


def clickables_of(shop: Shop, number: int, rules: Rules) -> tuple[tuple[str, str], ...]:
    page = Session(Page.ITEM, "x", 1, number, "", (), (number,))
    return engine_of(shop, rules).view(page).options


@pytest.mark.parametrize("rules", [Rules(), COMPAT], ids=["default", "compat"])
def test_every_purchase_is_worth_the_best_of_all_combinations(
    real_shop: Shop, rules: Rules
) -> None:
    rewards, with_reasons = [], 0
    for goal in goals_of(real_shop, "synthetic", 300):
        plan = ORACLE.plan(PrivilegedShop(real_shop, goal, start(), 15, rules), 15)
        assert plan.status is PlanStatus.FOUND
        purchase = carried_out(real_shop, goal, start(), plan, rules)
        number = real_shop.catalogue.number_of(goal.asin)
        assert number is not None
        assert purchase.product == number
        product, price = real_shop.catalogue[number], real_shop.catalogue.price(number)
        exhaustive = most(goal, product, price, clickables_of(real_shop, number, rules))
        assert purchase.reward == exhaustive, goal
        rewards.append(purchase.reward)
        missing = [
            option
            for option in goal.options
            if not any(MATCHES[value, option] for _, value in purchase.options)
        ]
        assert plan.detail.count("; option ") == len(missing)
        assert (plan.detail == "") == (purchase.reward == 1)
        with_reasons += purchase.reward < 1
    mean, strict = math.fsum(rewards) / len(rewards), rewards.count(1.0) / len(rewards)
    assert with_reasons == len(rewards) - rewards.count(1.0)
    if len(rewards) == 6910:
        assert (mean, strict) == (pytest.approx(CEILING, abs=1e-4), pytest.approx(STRICT, abs=1e-4))
        assert with_reasons == 458
    assert mean >= CEILING - full_count(1, 0) * 0.01
    assert strict >= STRICT - full_count(1, 0) * 0.04


def test_the_reason_is_the_colour_that_a_value_is_read_as(real_shop: Shop) -> None:
    """On the published goals no other term is ever lost: attributes, price and type are met, and
    nothing is out of reach."""
    reason = re.compile(
        r"option '[^;]+': ['\"][^;]+['\"]: offered, but (?:read as '\w+', which|and) "
        r"does not count as a match"
    )
    seen = 0
    for goal in goals_of(real_shop, "synthetic", 300):
        detail = ORACLE.plan(PrivilegedShop(real_shop, goal, start(), 15)).detail
        if detail:
            head, *reasons = detail.split("; ")
            assert head.startswith("the purchase is worth 0.")
            assert all(reason.fullmatch(one) for one in reasons), detail
            seen += 1
    assert seen >= 10


def test_human_goals_are_worth_one(real_shop: Shop) -> None:
    goals = list(goals_of(real_shop, "human", 13))
    assert len(goals) == 13
    for goal, rules in itertools.product(goals, (Rules(), COMPAT)):
        plan = ORACLE.plan(PrivilegedShop(real_shop, goal, start(), 15, rules), 15)
        assert (plan.status, plan.detail) == (PlanStatus.FOUND, "")
        purchase = carried_out(real_shop, goal, start(), plan, rules)
        assert purchase.reward == 1.0
        assert len(plan.actions) <= 3 + len(goal.options)


def wander(shop: Shop, goal: Goal, draw: Random, steps: int) -> Session:
    """Where a shopper gets to who searches with words of the goal and clicks around."""
    engine, session = engine_of(shop), start()
    words = re.findall(r"[a-z0-9]+", goal.instruction.lower())
    for _ in range(steps):
        page = engine.view(session)
        if session.page == Page.INDEX:
            command = f"search[{' '.join(draw.sample(words, min(3, len(words))))}]"
        else:
            command = draw.choice([c for c in page.commands if c != "click[buy now]"])
        if session.page == Page.RESULTS and draw.random() < 0.3:
            command = f"click[{goal.asin.lower()}]"  # if it is there
        after = engine.advance(session, page, command)
        session = session if after is None else after
    return session


def test_from_random_pages(real_shop: Shop) -> None:
    """2,000 states at the full count, half of them with few steps left."""
    draw, kinds = Random(11), set()
    goals = [real_shop.goals("synthetic"), real_shop.goals("human")]
    statuses: dict[PlanStatus, int] = dict.fromkeys(PlanStatus, 0)
    instead = 0
    for turn in range(full_count(150, 2000)):
        listed = goals[turn % 5 == 4]
        goal = listed[draw.randrange(len(listed))]
        session = wander(real_shop, goal, draw, draw.randrange(1, 12))
        left = draw.randrange(1, 7) if turn % 2 else 9
        number = real_shop.catalogue.number_of(goal.asin)
        assert number is not None
        kinds.add((session.page, session.product == number, bool(session.options)))
        seen = PrivilegedShop(real_shop, goal, session, left)
        before = dataclasses.astuple(seen)[1:]
        plan = ORACLE.plan(seen, left)
        assert dataclasses.astuple(seen)[1:] == before
        assert ORACLE.plan(seen, left) == plan
        statuses[plan.status] += 1
        purchase = carried_out(real_shop, goal, session, plan, Rules())
        price, product = real_shop.catalogue.price(number), real_shop.catalogue[number]
        best = most(goal, product, price, clickables_of(real_shop, number, Rules()))
        whole = ORACLE.plan(seen)
        assert carried_out(real_shop, goal, session, whole, Rules()).reward == best
        if len(whole.actions) <= left:
            assert plan == whole
        elif plan.status is PlanStatus.FOUND:
            instead += 1
            assert len(plan.actions) <= left
            assert purchase.reward > 0
        else:
            assert plan.status is PlanStatus.OVER_BUDGET
            assert plan.actions == whole.actions
    assert statuses[PlanStatus.FOUND] + statuses[PlanStatus.OVER_BUDGET] == sum(statuses.values())
    assert min(statuses[PlanStatus.OVER_BUDGET], instead) >= 5
    assert len(kinds) >= 7


# ------------------------------------------------------------------------------- in the env


@pytest.fixture(scope="module", params=["synthetic", "human"])
def env(request: pytest.FixtureRequest, real_shop: Shop) -> gymnasium.Env[str, str]:
    return gymnasium.make(
        "SeroWebShop-v0", data=real_shop, split=None, goal_source=request.param, max_steps=15
    )


def privileged(env: gymnasium.Env[str, str]) -> PrivilegedShop:
    unwrapped: Any = env.unwrapped
    view: PrivilegedShop = unwrapped.privileged()
    return view


def test_o15_plans_replay(env: gymnasium.Env[str, str]) -> None:
    """Admissible or fitting a template, never refused, the last one ends it as promised; the same
    as a branch from a page in the middle."""
    unwrapped: Any = env.unwrapped
    ids = unwrapped.task_ids
    for task_id in ids[:: max(len(ids) // full_count(40, 1000), 1)]:
        _, info = env.reset(options={"task_id": task_id})
        plan = ORACLE.plan(privileged(env), agent_envs.remaining_steps(env))
        assert plan.status is PlanStatus.FOUND
        middle = None
        for number, command in enumerate(plan.actions):
            templates = [re.escape(t).replace("<query>", ".+") for t in info["action_templates"]]
            assert command in info["admissible_actions"] or any(
                re.fullmatch(template, command) for template in templates
            )
            if number == 1:
                middle = agent_envs.snapshot(env)
            _, reward, terminated, _, info = env.step(command)
            assert info["command_valid"]
        assert terminated
        assert info["success"] == (plan.detail == "") == (reward == 1.0)
        assert middle is not None
        branch = run(agent_envs.fork(env), middle, ORACLE)
        assert (branch.valid, branch.status) == (True, BranchStatus.OK)
        assert tuple(step.action for step in branch.steps) == plan.actions[1:]
        assert branch.total_reward == reward


def test_o11_the_script_scores_through_the_text_adapter(env: gymnasium.Env[str, str]) -> None:
    """Tags, thoughts and prefixes around the oracle's commands, brackets too; capitals in them."""
    unwrapped: Any = env.unwrapped
    ids = unwrapped.task_ids
    template = get_template("field", pages="webshop")
    scores = []
    for number, task_id in enumerate(ids[:: max(len(ids) // full_count(40, 500), 1)]):
        _, info = env.reset(options={"task_id": task_id})
        terminated = False
        while not terminated:
            plan = ORACLE.plan(privileged(env))
            wanted = plan.actions[0]
            if number % 3 == 0:
                reply = f"<think>It is [this] one.</think>\n<action> {wanted.upper()} </action>"
            elif number % 3 == 1:
                reply = template.format_command(wanted).text
            else:
                reply = f"> think: search[x], or click [this]?\n> {wanted.title()}"
            parsed = parse_plain(reply) if number % 3 == 2 else template.parse(reply)
            assert parsed.format_valid
            _, reward, terminated, truncated, info = env.step(parsed.command)
            assert info["command_valid"], parsed.command
            assert not truncated
        assert (reward == 1.0) == (plan.detail == "")
        scores.append(reward)
    assert scores.count(1.0) >= 0.85 * len(scores)
    if unwrapped.goals.kind == "human":
        assert set(scores) == {1.0}


def test_o11_buttons_that_do_not_exist_and_wrong_items(env: gymnasium.Env[str, str]) -> None:
    unwrapped: Any = env.unwrapped
    env.reset(options={"task_id": unwrapped.task_ids[0]})
    find, opened, *_ = ORACLE.plan(privileged(env)).actions
    env.step(find)
    page, _, _, _, before = env.step(opened)
    after, reward, terminated, truncated, info = env.step("click[Add to Cart]")
    assert (after, reward, terminated, truncated) == (page, 0.0, False, False)
    assert (info["command_valid"], info["admissible_actions"]) == (
        False,
        before["admissible_actions"],
    )
    goal = privileged(env).goal  # what is like it is worth something
    _, _, _, _, info = env.step(f"search[{goal.name.replace('[', ' ').replace(']', ' ')}]")
    links = [link for link in info["admissible_actions"] if re.fullmatch(r"click\[b0\w{8}\]", link)]
    env.step(next(link for link in links if link != opened))
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert terminated
    assert 0 < reward < 1
    assert info["stop_reason"] == "purchase"
