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
from oracles.webshop_selection import Group, choose


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
    late: Callable[[], bool] = lambda: False,
) -> tuple[tuple[Offer, ...], bool]:
    """Clicks after which most wanted options are matched, the fewest of that kind; and whether
    that is certain, which it is unless time is up.

    What is selected already costs nothing, and stays where nothing else of its group is clicked.

    Args:
        engine: of the shop.
        goal: whose options are wanted.
        session: on an item page.
        limit: clicks at most.
        late: asked now and then whether time is up.
    """
    listed = offers(engine, goal, session)
    names = dict.fromkeys(offer.group for offer in listed)
    kept = _bits(goal, [value for group, value in session.options if group not in names])
    groups = []
    for name in names:
        own = _bits(goal, [value for group, value in session.options if group == name])
        moves = [
            (offer.matches & ~kept, number)
            for number, offer in enumerate(listed)
            if offer.group == name
        ]
        groups.append(Group(own & ~kept, tuple(moves)))
    numbers, certain = choose(groups, limit, late)
    return tuple(listed[number] for number in numbers), certain


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
