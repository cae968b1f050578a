"""Which options to select on an item page so that a purchase is worth most, and what stands in
the way of a full reward.

Options enter the reward only through the number of wanted options that some selected value
matches (`agent_envs.webshop.reward`): groups do not matter, one value may match several, and a
value that matches nothing does no harm. So it is enough to know, of every value that can be
clicked, which wanted options it matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent_envs.webshop.engine import Engine
from agent_envs.webshop.model import Goal, Purchase, Session
from agent_envs.webshop.reward import Option, attributes_met, first_colour, options_met, price_met


class Offer(NamedTuple):
    """A value that can be selected and matches some wanted option."""

    command: str
    group: str
    value: str
    matches: int
    """Bit set of the wanted options."""


def offers(engine: Engine, goal: Goal, session: Session) -> list[Offer]:
    """The offers of the item page that `session` is on, in page order. A value that stands in
    several groups is selected in one of them, as the engine says."""
    found = []
    view = engine.view(session)
    for command, target in view.targets.items():
        if target >= 0:
            group, value = view.options[target]
            matches = _bits(goal, [value])
            if matches:
                found.append(Offer(command, group, value, matches))
    return found


def best_selection(
    engine: Engine,
    goal: Goal,
    session: Session,
    limit: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Offer, ...]:
    """Clicks after which most wanted options are matched, the fewest of that kind.

    Exact: over the groups, for every set of wanted options that can be matched, the fewest clicks
    that match it are kept. What is selected already costs nothing, and stays where nothing else
    of its group is clicked.

    Args:
        engine: of the shop.
        goal: whose options are wanted.
        session: on an item page.
        limit: clicks at most.
        check: called now and then; may raise to give up.
    """
    groups: dict[str, list[Offer]] = {}
    for offer in offers(engine, goal, session):
        groups.setdefault(offer.group, []).append(offer)
    kept = [value for group, value in session.options if group not in groups]
    fewest: dict[int, tuple[Offer, ...]] = {_bits(goal, kept): ()}
    for group, members in groups.items():
        selected = [value for name, value in session.options if name == group]
        own = _bits(goal, selected)
        # Two values that match the same are worth the same: the first one stands for both.
        distinct = {offer.matches: offer for offer in reversed(members)}
        moves = [offer for matches, offer in reversed(distinct.items()) if matches & ~own]
        following: dict[int, tuple[Offer, ...]] = {}
        for matched, clicks in fewest.items():
            check()
            for offer in moves:  # first, so that of equals the one higher up the page is taken
                _keep(following, matched | offer.matches, (*clicks, offer), limit)
            _keep(following, matched | own, clicks, limit)
        fewest = following
    return min(fewest.items(), key=lambda item: (-item[0].bit_count(), len(item[1])))[1]


def _keep(
    fewest: dict[int, tuple[Offer, ...]],
    matched: int,
    clicks: tuple[Offer, ...],
    limit: int | None,
) -> None:
    if limit is not None and len(clicks) > limit:
        return
    if matched not in fewest or len(clicks) < len(fewest[matched]):
        fewest[matched] = clicks


def shortfalls(engine: Engine, goal: Goal, purchase: Purchase, on_page: Session) -> list[str]:
    """Why the purchase is not worth 1.0: one reason for each term that is not met.

    Args:
        engine: of the shop.
        goal: of the episode.
        purchase: after the best selection.
        on_page: a session on the item page.
    """
    product = engine.shop.catalogue[purchase.product]
    info, reasons = purchase.info, []
    if info.r_type < 1:
        reasons.append(f"type counts {info.r_type:g} (title score {info.title_score:.3f})")
    if not price_met(goal, purchase.price):
        reasons.append(f"price {purchase.price:.2f} is above the cap {goal.price_upper:.2f}")
    for attribute, met in zip(goal.attributes, attributes_met(goal, product), strict=True):
        if not met:
            reasons.append(f"attribute {attribute!r} is not matched")
    values = [value for _, value in purchase.options]
    wanted: Sequence[Option] = goal.options
    for option, met in zip(wanted, options_met(wanted, values), strict=True):
        if not met:
            reasons.append(f"option {_named(option)}: {_why(engine, option, purchase, on_page)}")
    return reasons


def _why(engine: Engine, option: Option, purchase: Purchase, on_page: Session) -> str:
    groups = engine.shop.catalogue[purchase.product].options
    offered = [value for _, values in groups for value in values]
    matching = {value for value in offered if options_met((option,), [value])[0]}
    text = option if isinstance(option, str) else option[1]
    if not matching:
        if text not in offered:
            return "not offered, under any spelling that counts"
        colour = first_colour(text)
        read = f"read as {colour!r}, which" if colour != text else "and"
        return f"offered, but {read} does not count as a match"
    selectable = {value: group for group, value in engine.view(on_page).options}
    reachable = sorted(matching & selectable.keys())
    if not reachable:
        return f"{min(matching)!r} cannot be clicked"
    taken = dict(purchase.options)
    for value in reachable:
        group = selectable[value]
        own = [name for name, values in groups if value in values]
        if group not in taken:
            return f"no step is left to select {value!r}"
        if len(own) > 1:
            return f"{value!r} stands in several groups and is selected in {group!r} only"
    value = reachable[0]
    return f"{selectable[value]!r} holds one value, {taken[selectable[value]]!r} is worth as much"


def _named(option: Option) -> str:
    return repr(option) if isinstance(option, str) else f"{option[0]!r}: {option[1]!r}"


def _bits(goal: Goal, values: list[str]) -> int:
    return sum(met << place for place, met in enumerate(options_met(goal.options, values)))
