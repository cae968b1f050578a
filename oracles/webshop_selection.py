"""Of every group at most one value, so that the values match most: the combinatorics of it.

Groups that share no wanted option are independent, so each connected set of groups is solved on
its own. Where every value matches one option, that is a matching of least cost; otherwise a
dynamic program over the groups, whose states are the options that later groups can still match.
The latter can become exponential, so it stops when time is up, and a greedy choice stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """A group of values. What is wanted are bits, matches are sets of them."""

    own: int
    """Matches of the value that is selected already; it costs nothing and stays without a click."""
    moves: tuple[tuple[int, int], ...]
    """(matches, number of the value) of what can be clicked, in the order of preference."""


Choice = tuple[int, ...]
"""Numbers of values to click."""
_Table = dict[int, tuple[int, Choice]]
"""Clicks -> how many wanted options they match at most, and how."""


def choose(
    groups: Sequence[Group], limit: int | None, late: Callable[[], bool]
) -> tuple[Choice, bool]:
    """The fewest clicks, `limit` at most, that match most; and whether that is certain.

    Args:
        groups: in the order of preference.
        limit: of clicks.
        late: whether time is up.
    """
    total: _Table = {0: (0, ())}
    certain = True
    for part in _parts([_trimmed(group) for group in groups]):
        simple = all(
            bits.bit_count() <= 1 for group in part for bits in (group.own, *dict(group.moves))
        )
        table = _matching(part) if simple else _by_sets(part, limit, late)
        if table is None:
            table, certain = _greedy(part), False
        joined: _Table = {}
        for before, (count, choice) in sorted(total.items(), reverse=True):
            for clicks, (more, others) in table.items():
                both = before + clicks
                if limit is not None and both > limit:
                    continue
                if both not in joined or joined[both][0] < count + more:
                    joined[both] = count + more, choice + others
        total = joined
    best = min(total, key=lambda clicks: (-total[clicks][0], clicks))
    return tuple(sorted(total[best][1])), certain


def _trimmed(group: Group) -> Group:
    """Without values that match no more than another one of the group does."""
    kept: list[tuple[int, int]] = []
    for bits, number in sorted(group.moves, key=lambda move: -move[0].bit_count()):  # stable
        if bits & ~group.own and all(bits & ~other for other, _ in kept):
            kept.append((bits, number))
    return Group(group.own, tuple(sorted(kept, key=lambda move: move[1])))


def _parts(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Groups that are connected by what they can match."""
    parts: list[tuple[int, list[int]]] = []
    for place, group in enumerate(groups):
        reach, members = group.own, [place]
        for bits, _ in group.moves:
            reach |= bits
        apart = []
        for other, places in parts:
            if other & reach:
                reach, members = reach | other, [*places, *members]
            else:
                apart.append((other, places))
        parts = [*apart, (reach, members)]
    for _, places in sorted((reach, sorted(places)) for reach, places in parts):
        yield [groups[place] for place in places]


def _matching(groups: Sequence[Group]) -> _Table:
    """Exact where every value matches one option: successive shortest augmenting paths."""
    # Of each group: option -> (clicks, number).
    edges: list[dict[int, tuple[int, int]]] = []
    for group in groups:
        offered = {bits: (1, number) for bits, number in reversed(group.moves)}
        offered = dict(reversed(offered.items()))
        edges.append({**offered, group.own: (0, -1)} if group.own else offered)
    taken: dict[int, int] = {}  # option -> group
    table: _Table = {0: (0, ())}
    while True:
        held = {place: bits for bits, place in taken.items()}
        costs = {place: 0 for place in range(len(edges)) if place not in held}
        reached: dict[int, tuple[int, int]] = {}  # option -> cost, group before it
        changed = True
        while changed:
            changed = False
            for place, cost in sorted(costs.items()):
                for bits, (clicks, _) in edges[place].items():
                    if held.get(place) == bits:
                        continue
                    if bits not in reached or cost + clicks < reached[bits][0]:
                        reached[bits], changed = (cost + clicks, place), True
                        if bits in taken:
                            costs[taken[bits]] = cost + clicks - edges[taken[bits]][bits][0]
        free = [bits for bits in reached if bits not in taken]
        if not free:
            return table
        end: int | None = min(free, key=lambda bits: reached[bits][0])
        while end is not None:
            place = reached[end][1]
            taken[end], end = place, held.get(place)
        chosen = [edges[place][bits] for bits, place in taken.items()]
        numbers = tuple(number for clicks, number in chosen if clicks)
        table[len(numbers)] = len(taken), numbers


def _by_sets(groups: Sequence[Group], limit: int | None, late: Callable[[], bool]) -> _Table | None:
    """Exact; None if time is up before."""
    later = [0] * (len(groups) + 1)  # what the groups from here on can match
    for place in range(len(groups) - 1, -1, -1):
        later[place] = later[place + 1] | groups[place].own
        for bits, _ in groups[place].moves:
            later[place] |= bits
    # (matched options that matter later, clicks) -> others that are matched, how
    states: dict[tuple[int, int], tuple[int, Choice]] = {(0, 0): (0, ())}
    for place, group in enumerate(groups):
        following: dict[tuple[int, int], tuple[int, Choice]] = {}
        ahead = later[place + 1]
        for turn, ((matched, clicks), (count, choice)) in enumerate(states.items()):
            if turn % 256 == 0 and late():
                return None
            for bits, number in (*group.moves, (group.own, -1)):
                click = number >= 0
                if click and limit is not None and clicks >= limit:
                    continue
                union = matched | bits
                key = union & ahead, clicks + click
                done = count + (union & ~ahead).bit_count()
                if key not in following or following[key][0] < done:
                    following[key] = done, (*choice, number) if click else choice
        states = following
    return {clicks: found for (_, clicks), found in states.items()}


def _greedy(groups: Sequence[Group]) -> _Table:
    """One click after the other, each one that adds most."""
    values = [group.own for group in groups]
    numbers: dict[int, int] = {}
    table: _Table = {}
    while True:
        table[len(numbers)] = _union(values).bit_count(), tuple(numbers.values())
        best, step = _union(values).bit_count(), None
        for place, group in enumerate(groups):
            if place in numbers:
                continue
            others = _union(values[:place]) | _union(values[place + 1 :])
            for bits, number in group.moves:
                if (others | bits).bit_count() > best:
                    best, step = (others | bits).bit_count(), (place, bits, number)
        if step is None:
            return table
        values[step[0]], numbers[step[0]] = step[1], step[2]


def _union(values: Sequence[int]) -> int:
    union = 0
    for bits in values:
        union |= bits
    return union
