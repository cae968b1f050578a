"""The two baselines of the WebShop paper.

Promises:
1. The rule searches for the instruction, opens the first result, buys; from any page, from history
   and observation alone, and without repeating what the history has done.
2. The choice oracle's purchase is worth as much as any that its search lists and the steps allow,
   beside a search that tries everything; it never buys what the search does not list.
3. A status says what is wrong; asking changes nothing; every command is admissible.
4. Both are known to the trainer by name.
"""

from __future__ import annotations

from random import Random
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.webshop.engine import engine_of, observe, start
from agent_envs.webshop.model import Goal, Page, PrivilegedShop, Session
from agent_envs.webshop.shop import Shop
from oracles import Decision, HistoryItem, Oracle, Planner, PlanStatus
from oracles.branch import BranchStatus, run
from oracles.webshop_baselines import ChoiceOracle, RuleOracle, RuleState, instruction_query
from oracles.webshop_goal import WebShopGoalOracle
from tests.oracles.toy_shop import everything, goal_for, item, on_item, shop_of
from tests.support import full_count
from trainer.worlds.environments import ALFWORLD, WEBSHOP
from trainer.worlds.oracles import make_oracle

QUERY = "find me a mug"
SIZES = {"size": ["small", "large"]}
COLOURS = {"color": ["sky blue", "white", "dark red"]}


@pytest.fixture(scope="module")
def shelf() -> Shop:
    """Mugs with options, one too dear; a hose that no search for a mug lists."""
    return shop_of(
        [
            item("B00000000A", "Blue Ceramic Mug", {**COLOURS, **SIZES}),
            item("B00000000B", "Tall Glass Mug", {"size": ["small", "11 oz"], **COLOURS}),
            item("B00000000C", "Travel Mug", price="$35.00"),
            *[item(f"B0000000{i:02}", f"Plain Mug No {i}", SIZES) for i in range(10, 24)],
            item("B00000000Z", "Garden Hose", query="hoses", path="Garden › Hoses"),
        ]
    )


def view(
    shop: Shop, goal: Goal, session: Session | None = None, left: int | None = 15
) -> PrivilegedShop:
    return PrivilegedShop(shop, goal, start() if session is None else session, left)


def episode(
    env: gymnasium.Env[str, str], oracle: Oracle[Any], observation: str, info: dict[str, Any]
) -> tuple[list[str], dict[str, Any], float]:
    """Play to the end; every command is on the page or fits a template."""
    state, actions, over = oracle.start(None, ()), [], False
    reward: Any = 0.0
    while not over:
        decision, state = oracle.act(state, None, observation)
        assert decision.status is PlanStatus.FOUND
        assert decision.action is not None
        assert decision.action in info["admissible_actions"] or (
            decision.action.startswith("search[") and info["action_templates"]
        )
        actions.append(decision.action)
        observation, reward, terminated, truncated, info = env.step(decision.action)
        assert info["command_valid"]
        over = terminated or truncated
    return actions, info, float(reward)


# ------------------------------------------------------------------ the query


@pytest.mark.parametrize(
    ("instruction", "query"),
    [
        ("Find me Mugs, and price lower than 20.00 dollars", None),
        ("a [b]] mug <c>\nplease", "a b mug c please"),
        ("蓝色 mug", "mug"),
        ("蓝色", "蓝色"),
        ("w" * 998 + " xy z", "w" * 998),
    ],
)
def test_the_query_is_the_instruction(instruction: str, query: str | None) -> None:
    assert instruction_query(instruction) == (instruction.lower() if query is None else query)


def test_nothing_to_search_for() -> None:
    assert instruction_query(" []\n<> ") is None


# ------------------------------------------------------------------ the rule


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("keeps", [{}, {"num_prev_obs": 2, "num_prev_actions": 2}])
def test_the_rule_takes_three_steps(mode: str, keeps: dict[str, int]) -> None:
    options: dict[str, Any] = {"data": "generated:small", "observation_mode": mode, **keeps}
    env = gymnasium.make("SeroWebShop-v0", **options)
    unwrapped: Any = env.unwrapped
    for seed in range(full_count(4, 100)):
        observation, info = env.reset(seed=seed)
        query = instruction_query(info["goal"])
        first = unwrapped.shop.catalogue.asin(unwrapped.engine.hits(query)[0]).lower()
        actions, info, reward = episode(env, RuleOracle(), observation, info)
        assert actions == [f"search[{query}]", f"click[{first}]", "click[buy now]"]
        assert reward == info["score"] == unwrapped._bought.reward
        assert unwrapped._bought.options == ()


FIRST, OTHER = ["search[Find me a MUG]", "click[{0}]"], ["search[hose]", "click[b00000000z]"]


@pytest.mark.parametrize(
    ("student", "following"),
    [
        ([], ["search[find me a mug]", "click[{0}]", "click[buy now]"]),
        (FIRST[:1], ["click[{0}]", "click[buy now]"]),
        (FIRST, ["click[buy now]"]),
        ([*FIRST, "click[small]", "click[nonsense]"], ["click[buy now]"]),
        ([*FIRST, "click[features]", "click[< prev]"], ["click[buy now]"]),
        ([*FIRST, "click[< prev]"], ["click[{0}]", "click[buy now]"]),
        ([*FIRST, "click[features]"], ["click[back to search]", "search[find me a mug]"]),
        ([*FIRST, "click[< prev]", "click[{1}]"], ["click[back to search]"]),
        ([*FIRST, "click[back to search]"], ["search[find me a mug]"]),
        ([FIRST[0], "click[next >]"], ["click[back to search]"]),
        ([FIRST[0], "click[next >]", "click[< prev]"], ["click[{0}]"]),
        (OTHER[:1], ["click[back to search]", "search[find me a mug]", "click[{0}]"]),
        (OTHER, ["click[back to search]", "search[find me a mug]", "click[{0}]"]),
        (["search[hose"], ["search[find me a mug]"]),
        ([FIRST[0], f"search[{'x' * 5000}]"], ["click[{0}]"]),
    ],
)
def test_the_rule_goes_on_from_the_history(
    shelf: Shop, student: list[str], following: list[str]
) -> None:
    engine, goal, session = engine_of(shelf), goal_for(shelf, "B00000000A"), start()
    listed = [shelf.catalogue.asin(n).lower() for n in engine.hits(QUERY)]
    history = []
    for action in (command.format(*listed) for command in student):
        after = engine.advance(session, engine.view(session), action)
        history.append(HistoryItem(observe(shelf, goal, session), action, after is not None))
        session = after or session
    oracle = RuleOracle()
    state = oracle.start(None, tuple(history))
    for expected in following:
        decision, state = oracle.act(state, None, observe(shelf, goal, session))
        assert decision == Decision(PlanStatus.FOUND, expected.format(*listed))
        assert decision.action is not None
        after = engine.advance(session, engine.view(session), decision.action)
        assert after is not None
        session = after


def test_without_a_history_it_trusts_no_page(shelf: Shop) -> None:
    """The results at hand may be of any query, and the open product may be any."""
    goal, oracle = goal_for(shelf, "B00000000A"), RuleOracle()
    for session in (Session(Page.RESULTS, QUERY), on_item(shelf, "B00000000A", QUERY)):
        decision, state = oracle.act(RuleState(), None, observe(shelf, goal, session))
        assert (decision.action, state) == ("click[back to search]", RuleState())


def test_the_rule_says_why_it_stops(shelf: Shop) -> None:
    goal, oracle = goal_for(shelf, "B00000000A"), RuleOracle()
    nothing = goal._replace(instruction="zzz")
    found = observe(shelf, nothing, Session(Page.RESULTS, "zzz"))
    decision, _ = oracle.act(RuleState("zzz"), None, found)
    assert decision.status is PlanStatus.UNSUPPORTED
    assert decision.detail == "the search for the instruction lists nothing"
    decision, _ = oracle.act(RuleState(), None, "http://localhost/index/abc")
    assert (decision.status, decision.action) == (PlanStatus.UNSUPPORTED, None)
    blank = observe(shelf, goal._replace(instruction="[]"), start())
    assert oracle.act(RuleState(), None, blank)[0].status is PlanStatus.UNSUPPORTED
    # 35 dollars against a cap of 20: the attribute, and not the price, is met.
    dear = on_item(shelf, "B00000000C")._replace(page=Page.DONE)
    decision, _ = oracle.act(RuleState(), None, observe(shelf, goal, dear))
    assert (decision.status, decision.detail[:31]) == (
        PlanStatus.UNSOLVABLE,
        "the purchase is made, worth 0.5",
    )
    done = on_item(shelf, "B00000000A")._replace(page=Page.DONE)
    assert oracle.act(RuleState(), None, observe(shelf, goal, done))[0] == Decision(
        PlanStatus.ALREADY_DONE, None
    )


def test_the_rule_in_a_branch(shelf: Shop) -> None:
    """Also where the student went astray; the env gives no privileged view."""
    env = gymnasium.make("SeroWebShop-v0", data="generated:small")
    observation, _ = env.reset(seed=1)
    action = "search[red lamp]"
    env.step(action)
    fork = agent_envs.fork(env)
    history = (HistoryItem(observation, action, True),)
    branch = run(fork, agent_envs.snapshot(env), RuleOracle(), history=history)
    assert branch.valid
    assert branch.status is BranchStatus.OK
    assert [step.action.split("[")[0] for step in branch.steps] == ["click", "search"] + [
        "click"
    ] * 2


# ------------------------------------------------------------------ the choice oracle


def test_the_choice_by_hand(shelf: Shop) -> None:
    """The goal's own mug with both options: 1 attribute + 2 options + price of 4 terms."""
    goal = goal_for(shelf, "B00000000A", ("sky blue", "large"))
    plan = ChoiceOracle().plan(view(shelf, goal), 6)
    assert plan.status is PlanStatus.FOUND
    assert plan.actions[0] == f"search[{QUERY}]"
    assert plan.actions[-4:] == (
        "click[b00000000a]",
        "click[sky blue]",
        "click[large]",
        "click[buy now]",
    )
    assert plan.detail == ""


def test_equals_trying_everything_that_is_listed(shelf: Shop) -> None:
    engine, draw, oracle = engine_of(shelf), Random(5), ChoiceOracle()
    listed = set(engine.hits(QUERY))
    wanted: list[Any] = [
        (),
        ("sky blue", "small"),
        ("11 oz", "dark red", "large"),
        (("size", "small"),),
    ]
    statuses = set()
    for _ in range(full_count(25, 300)):
        asin = draw.choice(["B00000000A", "B00000000B", "B00000000C", "B000000015", "B00000000Z"])
        goal = goal_for(shelf, asin, draw.choice(wanted))._replace(instruction=QUERY)
        session = start()
        for _ in range(draw.randrange(5)):
            page = engine.view(session)
            commands = [c for c in page.commands if c != "click[buy now]"]
            if session.page == Page.INDEX:
                commands = [f"search[{draw.choice(['mug', 'hose', QUERY, 'tall'])}]"]
            after = engine.advance(session, page, draw.choice(commands))
            assert after is not None
            session = after
        left = draw.randrange(1, 8)
        found = everything(engine, goal, session, [QUERY], 7)
        best = max(
            (
                (purchase.reward, -steps)
                for steps in range(1, left + 1)
                for purchase in found.get(steps, ())
                if purchase.product in listed and purchase.reward > 0
            ),
            default=None,
        )
        plan = oracle.plan(view(shelf, goal, session), left)
        statuses.add(plan.status)
        assert plan == oracle.plan(view(shelf, goal, session), left)
        if best is None:
            assert plan.status is not PlanStatus.FOUND
            assert (plan.status is PlanStatus.OVER_BUDGET) == bool(plan.actions)
            assert len(plan.actions) > left or not plan.actions
            continue
        assert plan.status is PlanStatus.FOUND
        for command in plan.actions:
            page = engine.view(session)
            assert command in page.commands or session.page == Page.INDEX
            after = engine.advance(session, page, command)
            assert after is not None
            session = after
        bought = engine.purchase(goal, session)
        assert bought.product in listed
        assert (bought.reward, -len(plan.actions)) == best
        assert bool(plan.detail) == (best[0] < 1 or shelf.catalogue.asin(bought.product) != asin)
    assert {PlanStatus.FOUND, PlanStatus.OVER_BUDGET} <= statuses


def test_it_looks_through_all_pages() -> None:
    """Of 25 mugs the last one listed has the option: 3 of 3 terms, and 2 of 3 for all others."""
    title = "Grand Wide Heavy Tall Old Round Warm Stoneware Drinking Cup or Mug of Quality"
    shop = shop_of(
        [
            *[item(f"B0000000{i:02}", "Mug") for i in range(24)],
            item("B00000000A", title, SIZES),
        ]
    )
    goal = goal_for(shop, "B00000000A", ("large",))._replace(name="Mug")
    assert shop.catalogue.asin(engine_of(shop).hits(QUERY)[-1]) == goal.asin
    plan = ChoiceOracle().plan(view(shop, goal))
    assert plan.actions[1:4] == ("click[next >]", "click[next >]", "click[b00000000a]")
    assert (len(plan.actions), plan.detail) == (6, "")
    short = ChoiceOracle().plan(view(shop, goal), 5)
    assert len(short.actions) == 3
    assert "the purchase is worth 0.6667" in short.detail


def test_it_buys_only_what_the_search_lists(shelf: Shop) -> None:
    """Even with the goal's product open: what is wanted is the worth of the search."""
    goal = goal_for(shelf, "B00000000Z", (), ("hand painted",))._replace(instruction=QUERY)
    seen = view(shelf, goal, on_item(shelf, "B00000000Z", "hose"))
    assert WebShopGoalOracle().plan(seen).actions == ("click[buy now]",)
    plan = ChoiceOracle().plan(seen)
    # No noun in common with "Garden Hose": every mug's type counts 0.
    assert (plan.status, plan.actions) == (PlanStatus.UNSUPPORTED, ())
    assert plan.detail.endswith("none of the 17 results is worth anything")
    similar = goal._replace(name="Garden Mug")
    plan = ChoiceOracle().plan(view(shelf, similar, seen.session))
    assert plan.actions[:2] == ("click[back to search]", f"search[{QUERY}]")
    assert "'B00000000Z' is not listed" in plan.detail


def test_statuses_of_the_choice(shelf: Shop) -> None:
    goal, oracle = goal_for(shelf, "B00000000A", ("sky blue", "large")), ChoiceOracle()
    plan = oracle.plan(view(shelf, goal), 2)
    assert plan.status is PlanStatus.OVER_BUDGET
    assert "worth 1.0000 and takes" in plan.detail
    assert len(plan.actions) > 2
    # It is on the second page. A step less, and a plain mug of the first has the size only: 3 of
    # 4 terms.
    assert len(plan.actions) == 6
    short = oracle.plan(view(shelf, goal), 5)
    assert short.status is PlanStatus.FOUND
    assert short.actions[2:] == ("click[large]", "click[buy now]")
    assert "takes 6 steps, 5 may be taken" in short.detail
    assert "the purchase is worth 0.7500" in short.detail
    assert oracle.plan(view(shelf, goal), 9, 0.0).status is PlanStatus.TIMEOUT
    nothing = oracle.plan(view(shelf, goal._replace(instruction="zzz")))
    assert (nothing.status, nothing.actions) == (PlanStatus.UNSUPPORTED, ())
    assert "there is no result" in nothing.detail
    blank = oracle.plan(view(shelf, goal._replace(instruction="[]")))
    assert blank.status is PlanStatus.UNSUPPORTED
    wrong: Any = None
    assert oracle.plan(wrong).status is PlanStatus.UNSUPPORTED
    done = on_item(shelf, "B00000000A")._replace(page=Page.DONE)
    assert oracle.plan(view(shelf, goal, done)).status is PlanStatus.UNSOLVABLE
    decision, _ = oracle.act(None, view(shelf, goal, left=2), "")
    assert decision.status is PlanStatus.OVER_BUDGET
    assert decision.action == f"search[{QUERY}]"


def test_the_choice_in_branches_of_the_generated_shop() -> None:
    """It follows its plan and gets what it says; never less than the rule, never above the goal."""
    env = gymnasium.make("SeroWebShop-v0", data="generated:small")
    env.reset(seed=0)
    fork = agent_envs.fork(env)
    rewards = []
    for seed in range(full_count(4, 60)):
        env.reset(seed=seed)
        root = agent_envs.snapshot(env)
        oracles: list[Oracle[Any]] = [RuleOracle(), ChoiceOracle(None), WebShopGoalOracle(None)]
        branches = [run(fork, root, oracle) for oracle in oracles]
        assert all(branch.valid for branch in branches)
        rule, choice, goal = (branch.total_reward for branch in branches)
        assert rule <= choice <= goal
        rewards.append((rule, choice))
    assert any(rule < choice for rule, choice in rewards)


@pytest.mark.data
def test_the_published_products(real_shop: Shop) -> None:
    """On a sample of the goals: the choice is worth what it says, and the rule at most that."""
    env = gymnasium.make("SeroWebShop-v0", data=real_shop, split=None)
    unwrapped: Any = env.unwrapped
    totals = [0.0, 0.0]
    ids = unwrapped.goals.task_ids()
    count = full_count(6, 500)
    for task_id in ids[:: len(ids) // count][:count]:
        observation, info = env.reset(options={"task_id": task_id})
        plan = ChoiceOracle(None).plan(unwrapped.privileged(), 15)
        assert plan.status is PlanStatus.FOUND
        worth = 1.0 if "is worth" not in plan.detail else float(plan.detail.split("worth ")[1][:6])
        _, _, rule = episode(env, RuleOracle(), observation, info)
        env.reset(options={"task_id": task_id})
        reward = [float(env.step(command)[1]) for command in plan.actions][-1]
        assert reward == pytest.approx(worth, abs=5e-5)
        assert rule <= reward
        totals[0] += rule
        totals[1] += reward
    assert totals[0] < totals[1]
    if count == 500:  # as docs/oracles.md has it
        assert [total / count for total in totals] == pytest.approx([0.5615, 0.9861], abs=5e-5)


# ------------------------------------------------------------------ by name


def test_the_trainer_knows_them_by_name() -> None:
    rule, choice = make_oracle("rule", 0.5, WEBSHOP), make_oracle("choice", 0.5, WEBSHOP)
    assert type(rule) is RuleOracle
    assert type(choice) is ChoiceOracle
    assert choice.budget_s == 0.5
    assert (rule.privileged, choice.privileged) == (False, True)
    assert isinstance(choice, Planner)
    assert type(make_oracle("planner", None, WEBSHOP)) is WebShopGoalOracle
    with pytest.raises(ValueError, match="give planner"):
        make_oracle("rule", None, ALFWORLD)
