"""The two baselines of the WebShop paper as oracles: the rule, and the choice oracle.

Yao et al. 2022 (arXiv:2207.01206): the rule searches for the text of the instruction,
opens the first result and buys it as it is; the choice oracle knows the reward and buys the best
that one search lists, options included. Written from that description. Both search for the whole
instruction, price limit included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agent_envs.webshop.actions import BACK_TO_SEARCH, BUY, CLICK, PREVIOUS, SEARCH, click, parse
from agent_envs.webshop.engine import Engine
from agent_envs.webshop.model import Page, PrivilegedShop, Purchase, Session
from agent_envs.webshop.text_pages import SEPARATOR
from oracles.base import Decision, History, Plan, PlanStatus
from oracles.webshop_goal import WebShopGoalOracle
from oracles.webshop_options import best_selection, shortfalls
from oracles.webshop_routes import QUERY_LIMIT, follow, routes

_UNSAYABLE = re.compile(r"[\[\]<>\s]+")
# The published prompts count a reply with one of these as malformed.
_CJK = re.compile("[\u4e00-\u9fff]+")
_BUTTON = re.compile(r"\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_BREAK = re.compile(re.escape(SEPARATOR) + r"|\n")
_RESULTS = re.compile(r"Page (\d+) \(Total results: \d+\)")
_SCORE = "Your score (min 0.0, max 1.0)"


def instruction_query(instruction: str) -> str | None:
    """The instruction as a query of the same words; None if nothing can be searched for.

    Brackets, angle brackets, line breaks and ideographs are left out, as in
    `oracles.webshop_routes.query_for`.

    >>> instruction_query("Find me a [blue] mug,\\nand price lower than 20.00 dollars")
    'find me a blue mug, and price lower than 20.00 dollars'
    """
    for text in (_CJK.sub(" ", instruction), instruction):
        query = _UNSAYABLE.sub(" ", text.lower()).strip()
        if len(query) > QUERY_LIMIT:
            query = query[:QUERY_LIMIT].rpartition(" ")[0]
        if parse(f"{SEARCH}[{query}]") == (SEARCH, query):
            return query
    return None


# ------------------------------------------------------------------ the rule


@dataclass(frozen=True, slots=True)
class RuleState:
    """Where the shopper got to, as far as the pages do not say it."""

    query: str | None = None
    """Of the results at hand."""
    is_first: bool = False
    """Whether the open product is the first result of the search for the instruction."""


class _Shown(NamedTuple):
    """A page as the shopper reads it."""

    kind: Page
    instruction: str
    first: str | None
    """The product that a first page of results lists first."""
    reward: str = ""


class RuleOracle:
    """Searches for the instruction, opens the first result, buys it without choosing options.

    Not privileged: it reads pages and remembers what was clicked. From a page that is not on this
    way it goes back to the first page and searches; a history of the student is followed, so a
    search that it has made is not made again. UNSUPPORTED: the search lists nothing, or the
    observations are not pages of text (modes ``html`` and ``url``).

    Args:
        budget_s: not used; a decision takes no search.
    """

    privileged = False

    def __init__(self, budget_s: float | None = None) -> None:
        self.budget_s = budget_s

    def start(self, view: None, history: History) -> RuleState:
        """What the history led to."""
        state = RuleState()
        for item in history:
            shown = _read(item.observation)
            if item.command_valid and shown is not None:
                state = _after(state, shown, item.action)
        return state

    def act(self, state: RuleState, view: None, observation: str) -> tuple[Decision, RuleState]:
        """The next of at most four commands."""
        shown = _read(observation)
        if shown is None:
            detail = "the observation is no page of WebShop's modes text and text_rich"
            return Decision(PlanStatus.UNSUPPORTED, None, detail), state
        if shown.kind == Page.DONE:
            if shown.reward == "1.0":
                return Decision(PlanStatus.ALREADY_DONE, None), state
            detail = f"the purchase is made, worth {shown.reward}; nothing can be bought after it"
            return Decision(PlanStatus.UNSOLVABLE, None, detail), state
        query = instruction_query(shown.instruction)
        if query is None:
            detail = "the instruction holds nothing that can be searched for"
            return Decision(PlanStatus.UNSUPPORTED, None, detail), state
        if shown.kind == Page.INDEX:
            action = f"{SEARCH}[{query}]"
        elif shown.kind == Page.ITEM and state.is_first:
            action = click(BUY)
        elif shown.kind == Page.RESULTS and state.query == query and shown.first is not None:
            if not shown.first:
                detail = "the search for the instruction lists nothing"
                return Decision(PlanStatus.UNSUPPORTED, None, detail), state
            action = click(shown.first.lower())
        else:
            action = click(BACK_TO_SEARCH)
        return Decision(PlanStatus.FOUND, action), _after(state, shown, action)


def _read(observation: str) -> _Shown | None:
    """The last page of an observation; None if it is none. Pages before it are passed over."""
    parts = _BREAK.split(observation)
    texts = [match[1] if (match := _BUTTON.fullmatch(text)) else text.strip() for text in parts]
    texts = [text for text in texts if text]
    if _SCORE in texts[:-1]:
        return _Shown(Page.DONE, "", None, texts[texts.index(_SCORE) + 1])
    starts = [place for place, text in enumerate(texts) if text == "Instruction:"]
    if not starts:
        return None
    texts = texts[starts[-1] + 1 :]
    end = next((p for p, text in enumerate(texts) if text in ("Back to Search", "Search")), None)
    if end is None:
        return None
    instruction, button, rest = " ".join(texts[:end]), texts[end], texts[end + 1 :]
    if button == "Search":
        return _Shown(Page.INDEX, instruction, None)
    results = _RESULTS.fullmatch(rest[0]) if rest else None
    if results is not None:
        products = rest[rest.index("Next >") + 1 :] if "Next >" in rest else []
        first = (products or [""])[0] if results[1] == "1" else None
        return _Shown(Page.RESULTS, instruction, first)
    kind = Page.ITEM if rest and rest[-1] == "Buy Now" else Page.SUB
    return _Shown(kind, instruction, None)


def _after(state: RuleState, shown: _Shown, action: str) -> RuleState:
    """The state after an accepted command."""
    verb, argument = parse(action) or ("", "")
    argument = argument.lower()
    if verb == SEARCH:
        return RuleState(argument)
    if verb != CLICK:
        return state
    if argument == BACK_TO_SEARCH:
        return RuleState()
    if shown.kind == Page.ITEM and argument == PREVIOUS:
        return RuleState(state.query)
    if shown.kind == Page.RESULTS and shown.first and argument == shown.first.lower():
        own = state.query is not None and state.query == instruction_query(shown.instruction)
        return RuleState(state.query, own)
    return state


# ------------------------------------------------------------------ the choice oracle


@dataclass(frozen=True, slots=True)
class _Choice:
    """Commands up to and including a purchase."""

    commands: tuple[str, ...]
    purchase: Purchase
    on_page: Session
    """Before the options are selected."""


class ChoiceOracle(WebShopGoalOracle):
    """Buys the best that the search for the instruction lists, with the best options.

    Privileged: it reads the reward of every product of the results (50 at most, on five pages).
    It does not look for the goal's own product: where that is not listed, its reward says how far
    searching, and not choosing, is what is hard. Of purchases that are worth as much the shortest,
    then the one listed first. It takes any page; results and products at hand count if the search
    lists the product. Statuses, budget and following of a plan are those of `WebShopGoalOracle`.
    """

    def _planned(
        self,
        engine: Engine,
        view: PrivilegedShop,
        horizon: int | None,
        late: Callable[[], bool],
    ) -> Plan:
        query = instruction_query(view.goal.instruction)
        if query is None:
            detail = "the instruction holds nothing that can be searched for"
            return Plan(PlanStatus.UNSUPPORTED, (), detail)
        places = {product: place for place, product in enumerate(engine.hits(query))}
        chooser = _Chooser(engine, view, query, places, late)
        best = chooser.best(None)
        obstacle = ""
        if best is not None and horizon is not None and len(best.commands) > horizon:
            obstacle = (
                f"the best of the results is worth {best.purchase.reward:.4f} and takes "
                f"{len(best.commands)} steps, {horizon} may be taken"
            )
            within = chooser.best(horizon)
            if within is None and not chooser.cut_short:
                return Plan(PlanStatus.OVER_BUDGET, best.commands, obstacle)
            best = within
        if best is not None:
            return Plan(PlanStatus.FOUND, best.commands, chooser.detail(best, obstacle))
        if chooser.cut_short:
            return Plan(PlanStatus.TIMEOUT, (), "no result within the budget")
        what = f"none of the {len(places)} results is" if places else "there is no result"
        return Plan(
            PlanStatus.UNSUPPORTED, (), f"the search for the instruction: {what} worth anything"
        )


class _Chooser:
    """One question."""

    def __init__(
        self,
        engine: Engine,
        view: PrivilegedShop,
        query: str,
        places: dict[int, int],
        late: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.view = view
        self.query = query
        self.places = places
        self.late = late
        self.cut_short = False
        """Whether time ran out before every result was looked at."""

    def best(self, horizon: int | None) -> _Choice | None:
        """The best purchase of so many steps; None if nothing is worth anything."""
        best: tuple[tuple[float, int, int], _Choice] | None = None
        seen: set[int] = set()
        for route in routes(self.engine, self.view.session, self.query):
            if self.late():
                self.cut_short = True
                break
            steps = len(route.commands) + 1
            if horizon is not None and steps > horizon:
                break  # routes are sorted by length
            if best is not None and best[1].purchase.reward == 1 and steps > best[0][1]:
                break
            if route.product not in self.places or route.product in seen:
                continue
            clicks = None if horizon is None else horizon - steps
            choice = self._choice(route.commands, route.on_page, clicks)
            if choice is None:
                continue
            seen.add(route.product)
            purchase = choice.purchase
            rank = (-purchase.reward, len(choice.commands), self.places[route.product])
            if purchase.reward > 0 and (best is None or rank < best[0]):
                best = rank, choice
        return None if best is None else best[1]

    def _choice(self, way: tuple[str, ...], on_page: Session, clicks: int | None) -> _Choice | None:
        """Select the best options with so many clicks, and buy; None if it is refused."""
        goal = self.view.goal
        selection, certain = best_selection(self.engine, goal, on_page, clicks, self.late)
        self.cut_short = self.cut_short or not certain
        ending = (*(offer.command for offer in selection), click(BUY))
        bought = follow(self.engine, on_page, ending)
        if bought is None or bought.page != Page.DONE:
            return None
        return _Choice((*way, *ending), self.engine.purchase(goal, bought), on_page)

    def detail(self, choice: _Choice, obstacle: str) -> str:
        """What is bought, and what keeps it from being worth 1.0."""
        purchase, asin = choice.purchase, self.view.goal.asin
        parts = [obstacle] if obstacle else []
        if self.cut_short and purchase.reward < 1:
            parts.append("time ran out, so another purchase may be worth more")
        found = self.engine.shop.catalogue.asin(purchase.product)
        if found != asin:
            listed = self.engine.shop.catalogue.number_of(asin) in self.places
            parts.append(f"{found!r} is bought, {asin!r} is {'' if listed else 'not '}listed")
        if purchase.reward < 1:
            parts.append(f"the purchase is worth {purchase.reward:.4f}")
            parts += shortfalls(self.engine, self.view.goal, purchase, choice.on_page)
        return "; ".join(parts)
