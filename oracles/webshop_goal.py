"""An oracle for WebShop that knows the goal: it buys what is worth most, from any page.

Privileged: it reads the goal's product, attributes, options and price cap. It wants the goal's own
product with the options that are worth most; where the steps left do not allow that, or the shop
does not have the product, the best purchase that the pages at hand or one search allow. The rules
of the reward are in docs/webshop_reward.md, how to get to a page in `oracles.webshop_routes`, which
options to select in `oracles.webshop_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

from agent_envs.webshop.actions import BUY, click
from agent_envs.webshop.engine import Engine, Rules, engine_of
from agent_envs.webshop.model import Goal, Page, PrivilegedShop, Purchase, Session
from agent_envs.webshop.shop import Shop
from oracles.base import Decision, History, Plan, PlanStatus
from oracles.webshop_options import best_selection, shortfalls
from oracles.webshop_routes import Route, follow, query_for, routes


@dataclass(frozen=True, slots=True)
class Pursuit:
    """A plan under way: what is left of it, valid while the session is as `expected`."""

    shop: object
    goal: Goal
    expected: Session
    rest: tuple[str, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class _Way:
    """Commands up to and including a purchase."""

    commands: tuple[str, ...]
    purchase: Purchase
    on_page: Session
    """Before the options are selected."""
    certain: bool
    """Whether no other selection is worth more."""


class _OutOfTime(Exception):
    pass


class WebShopGoalOracle:
    """Plans the most valuable purchase with the fewest commands, from every page.

    Of the goal's own product, the plan's purchase is worth as much as any selection of options
    makes it. The same view always gives the same plan, and every command of it is admissible when
    it is taken (a search on the first page only). FOUND does not promise a reward of 1.0: where the
    plan is worth less, `detail` says what stands in the way, term by term.

    As a closed-loop oracle it follows its plan for as long as the shop does what the plan expects,
    and plans anew otherwise.

    Args:
        budget_s: seconds that one `act` may take, see `plan`. None: no limit.
    """

    privileged = True

    def __init__(self, budget_s: float | None = 2.0) -> None:
        self.budget_s = budget_s

    def plan(
        self, view: PrivilegedShop, horizon: int | None = None, budget_s: float | None = None
    ) -> Plan:
        """All commands from the viewed page to the purchase.

        Args:
            view: ``env.unwrapped.privileged()``.
            horizon: steps that may be taken. If the best purchase takes more, another one that is
                worth something and fits (FOUND; `detail` says so); if there is none, OVER_BUDGET
                with the best one attached whole. None: no limit (`view.steps_left` is not read).
            budget_s: seconds, measured in wall-clock time. When they are used up, the best
                purchase found so far (FOUND; `detail` says that another may be worth more), or
                TIMEOUT if there is none. None: no limit. 0 or less: TIMEOUT, unless there is
                nothing to plan.
        """
        if not isinstance(view, PrivilegedShop):
            return Plan(PlanStatus.UNSUPPORTED, (), _not_a_view(view))
        rules = Rules() if view.rules is None else cast(Rules, view.rules)
        engine = engine_of(cast(Shop, view.shop), rules)
        if view.session.page == Page.DONE:
            return _after_purchase(engine.purchase(view.goal, view.session))
        try:
            return self._planned(engine, view, horizon, _clock(budget_s))
        except _OutOfTime:
            return Plan(PlanStatus.TIMEOUT, (), f"no result within the budget of {budget_s} s")

    def _planned(
        self,
        engine: Engine,
        view: PrivilegedShop,
        horizon: int | None,
        late: Callable[[], bool],
    ) -> Plan:
        """Before the purchase; what an oracle of another choice replaces."""
        return _Planner(engine, view.goal, view.session, horizon, late).plan()

    def start(self, view: PrivilegedShop, history: History) -> Pursuit | None:
        """Nothing is planned yet; the history is not needed, since the view says it all."""
        return None

    def act(
        self, state: Pursuit | None, view: PrivilegedShop, observation: str
    ) -> tuple[Decision, Pursuit | None]:
        """The next command of the best plan that `view.steps_left` allows.

        OVER_BUDGET if nothing that is worth something can be bought in time; the first command of
        the best plan is attached.
        """
        if (
            state is not None
            and state.rest
            and isinstance(view, PrivilegedShop)
            and state.shop is view.shop
            and state.expected == view.session
            and state.goal == view.goal
            and (view.steps_left is None or len(state.rest) <= view.steps_left)
        ):
            actions, status, detail = state.rest, PlanStatus.FOUND, state.detail
        else:
            horizon = view.steps_left if isinstance(view, PrivilegedShop) else None
            plan = self.plan(view, horizon, self.budget_s)
            actions, status, detail = plan.actions, plan.status, plan.detail
            if not actions:
                return Decision(status, None, detail), None
        rules = Rules() if view.rules is None else cast(Rules, view.rules)
        after = follow(engine_of(cast(Shop, view.shop), rules), view.session, actions[:1])
        if after is None:  # pragma: no cover - plans are followed before they are given
            return Decision(status, actions[0], detail), None
        pursuit = Pursuit(view.shop, view.goal, after, actions[1:], detail)
        return Decision(status, actions[0], detail), pursuit


class _Planner:
    """One question."""

    def __init__(
        self,
        engine: Engine,
        goal: Goal,
        session: Session,
        horizon: int | None,
        late: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.goal = goal
        self.session = session
        self.horizon = horizon
        self.late = late

    def check(self) -> None:
        if self.late():
            raise _OutOfTime

    def plan(self) -> Plan:
        self.check()
        number = self.engine.shop.catalogue.number_of(self.goal.asin)
        query = query_for(self.engine, self.goal, number)
        self.check()
        wanted = None if number is None else self._own(number, query)
        if wanted is not None and wanted.purchase.reward > 0 and self._fits(wanted):
            return Plan(PlanStatus.FOUND, wanted.commands, self._detail(wanted, ""))
        obstacle = self._obstacle(number, wanted)
        best = self._best(routes(self.engine, self.session, query), number)
        if best is not None:
            return Plan(PlanStatus.FOUND, best.commands, self._detail(best, obstacle))
        if wanted is not None and wanted.purchase.reward > 0:
            return Plan(PlanStatus.OVER_BUDGET, wanted.commands, obstacle)
        return Plan(
            PlanStatus.UNSUPPORTED,
            (),
            f"{obstacle}, and no other product on the pages looked at is worth anything",
        )

    def _own(self, number: int, query: str | None) -> _Way | None:
        """By the shortest route on which the purchase is not refused."""
        ways = (
            self._way(route, None) for route in routes(self.engine, self.session, query, number)
        )
        return next((way for way in ways if way is not None), None)

    def _best(self, found: Iterator[Route], number: int | None) -> _Way | None:
        """The most valuable purchase that fits; of several the shortest, then the goal's own."""
        best: tuple[tuple[float, int, bool], _Way] | None = None
        seen: set[int] = set()
        for route in found:
            if self.late():
                if best is None:
                    raise _OutOfTime
                return replace(best[1], certain=False)
            left = None if self.horizon is None else self.horizon - len(route.commands) - 1
            if left is not None and left < 0:
                break  # routes are sorted by length
            way = None if route.product in seen else self._way(route, left)
            if way is None:
                continue
            seen.add(route.product)
            rank = (-way.purchase.reward, len(way.commands), route.product != number)
            if way.purchase.reward > 0 and (best is None or rank < best[0]):
                best = rank, way
        return None if best is None else best[1]

    def _way(self, route: Route, clicks: int | None) -> _Way | None:
        """Go there, select the best options with so many clicks, buy; None if it is refused."""
        on_page = route.on_page
        selection, certain = best_selection(self.engine, self.goal, on_page, clicks, self.late)
        ending = (*(offer.command for offer in selection), click(BUY))
        bought = follow(self.engine, on_page, ending)
        if bought is None or bought.page != Page.DONE:
            return None
        purchase = self.engine.purchase(self.goal, bought)
        return _Way((*route.commands, *ending), purchase, on_page, certain)

    def _fits(self, way: _Way) -> bool:
        return self.horizon is None or len(way.commands) <= self.horizon

    def _obstacle(self, number: int | None, wanted: _Way | None) -> str:
        """Why the goal's own product is not simply bought."""
        asin = self.goal.asin
        if number is None:
            return f"the shop has no product {asin!r}"
        if wanted is None:
            return f"no search that was tried lists {asin!r}, or its page cannot be used"
        if wanted.purchase.reward <= 0:
            reasons = "; ".join(self._reasons(wanted))
            return f"{asin!r} itself is worth nothing ({reasons})"
        steps = len(wanted.commands)
        return f"the best purchase of {asin!r} takes {steps} steps, {self.horizon} may be taken"

    def _detail(self, way: _Way, obstacle: str) -> str:
        purchase = way.purchase
        parts = [obstacle] if obstacle else []
        if not way.certain and purchase.reward < 1:
            parts.append("time ran out, so another purchase may be worth more")
        asin = self.engine.shop.catalogue.asin(purchase.product)
        if asin != self.goal.asin:
            parts.append(f"{asin!r} is bought instead")
        if purchase.reward < 1:
            parts.append(f"the purchase is worth {purchase.reward:.4f}")
            parts += self._reasons(way)
        return "; ".join(parts)

    def _reasons(self, way: _Way) -> list[str]:
        return shortfalls(self.engine, self.goal, way.purchase, way.on_page)


def _after_purchase(purchase: Purchase) -> Plan:
    if purchase.reward == 1:
        return Plan(PlanStatus.ALREADY_DONE, ())
    detail = f"the purchase is made, worth {purchase.reward:.4f}; nothing can be bought after it"
    return Plan(PlanStatus.UNSOLVABLE, (), detail)


def _clock(budget_s: float | None) -> Callable[[], bool]:
    """A function that tells whether the budget is used up."""
    if budget_s is None:
        return lambda: False
    deadline = perf_counter() + budget_s
    return lambda: perf_counter() >= deadline


def _not_a_view(view: Any) -> str:
    return (
        f"the WebShop oracle needs a PrivilegedShop, found {type(view).__name__}; pass "
        "env.unwrapped.privileged()"
    )
