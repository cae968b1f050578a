"""Shortest plans for ALFWorld, by search over errands instead of commands.

Every two locations are one `go to` apart, so a plan costs: its errands (take, put, clean, heat,
cool, use), plus one `open` for each distinct closed receptacle that a take or a put needs, plus one
`go to` for each change of location between consecutive errands. The goals of ALFWorld fix which
errands a shortest plan has, up to the choice of object, source, tool, target and, if the hands
are full of something useless, of the place to drop it. This module goes through those choices.

Other kinds of plan are never shorter. Every detour through a further put or take adds its own
commands, two for putting an object down and taking it again, or one for a take from the second
receptacle that lists the object, and saves at most as many `go to`s. Closing, slicing and looking
bring no goal nearer.

Receptacles that no other part of a plan can tell apart (as far from everything, as closed) are
represented by the first of them, which leaves a handful of choices out of dozens.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

from agent_envs.alfworld.model import Game, State, TaskType, bits
from oracles.alfworld_errands import Errand, Place, Source, Target, fetch_and_put

_FAR = 1 << 30


class SearchTimeout(Exception):
    """The deadline passed before the search was complete."""


class ErrandSearch:
    """One search from one state; `run` returns the errands of a shortest plan or None.

    Args:
        deadline: value of `time.perf_counter` after which `SearchTimeout` is raised. None: never.
    """

    def __init__(self, game: Game, state: State, deadline: float | None = None) -> None:
        self.game = game
        self.state = state
        self.deadline = deadline
        goal = game.goal
        self.closed = game.openable & ~state.opened
        self.wanted = goal.objects
        self.held = state.held
        self.sources = self._find_sources()
        self.tools = self._find_tools()
        self.done = self._find_done()
        # Locations where two different errands may meet: a receptacle elsewhere always costs a
        # `go to` before it and a `go to` after it, whichever it is.
        self.meeting = {state.loc}
        self.meeting.update(source.loc for source in self.sources)
        self.meeting.update(tool.loc for tool in self.tools)
        self.best = _FAR
        self.errands: tuple[Errand, ...] = ()

    def run(self) -> tuple[Errand, ...] | None:
        """Errands of a shortest plan, or None if there is no plan.

        The goal must not hold already.

        Raises:
            SearchTimeout: the deadline passed.
        """
        self._check_time()
        kind = self.game.goal.kind
        if kind is TaskType.LOOK:
            self._look()
        elif kind is TaskType.TWO:
            self._two()
        else:
            self._one()
        return self.errands if self.best < _FAR else None

    # -- choices ---------------------------------------------------------------------------------

    def _find_sources(self) -> list[Source]:
        """Wanted objects that can be taken, with each receptacle that they can be taken from."""
        rec_loc, closed, held = self.game.rec_loc, self.closed, self.held
        takeable = self.wanted & self.game.pickupable
        if held >= 0:
            takeable &= ~(1 << held)
        return [
            Source(obj, rec, rec_loc[rec], closed >> rec & 1)
            for rec, mask in enumerate(self.state.contents)
            if mask & takeable and rec_loc[rec] >= 0
            for obj in bits(mask & takeable)
        ]

    def _find_tools(self) -> list[Place]:
        """Where the task's clean, heat, cool or use can be done; one place per location."""
        game = self.game
        kind = game.goal.kind
        if kind is TaskType.CLEAN:
            mask = game.sinks
        elif kind is TaskType.HEAT:
            mask = game.microwaves
        elif kind is TaskType.COOL:
            mask = game.fridges
        elif kind is TaskType.LOOK:
            return [
                Place(rec, game.rec_loc[rec], 0)
                for rec, inside in enumerate(self.state.contents)
                if inside & game.goal.lamps and game.rec_loc[rec] >= 0
            ]
        else:
            return []
        places: dict[int, Place] = {}
        for rec in bits(mask):
            loc = game.rec_loc[rec]
            if loc >= 0:
                places.setdefault(loc, Place(rec, loc, 0))
        return list(places.values())

    def _find_done(self) -> int:
        """Mask of the objects that need no (more) cleaning, heating or cooling."""
        kind = self.game.goal.kind
        if kind is TaskType.CLEAN:
            return self.state.clean
        if kind is TaskType.HEAT:
            return self.state.hot
        if kind is TaskType.COOL:
            return self.state.cool
        return self.wanted

    def _find_targets(self) -> list[Target]:
        game, contents = self.game, self.state.contents
        wanted, meeting = self.wanted, self.meeting
        first: dict[tuple[int, int, int, int], Target] = {}
        for rec in bits(game.goal.receptacles):
            fits = game.can_hold[rec] & wanted
            loc = game.rec_loc[rec]
            if not fits or loc < 0:
                continue
            shut = self.closed >> rec & 1
            inside = contents[rec] & wanted
            key = (loc if loc in meeting else -1, shut, inside, fits)
            if key not in first:
                first[key] = Target(rec, loc, shut, inside, fits)
        return list(first.values())

    def _find_drops(self) -> list[Place]:
        """Where the held object can be put down, cheapest first."""
        game, meeting, closed = self.game, self.meeting, self.closed
        targets, here, held = game.goal.receptacles, self.state.loc, self.held
        source_recs = {source.rec for source in self.sources}
        first: dict[tuple[int, int, int], Place] = {}
        for rec, mask in enumerate(game.can_hold):
            loc = game.rec_loc[rec]
            if not mask >> held & 1 or loc < 0:
                continue
            shut = closed >> rec & 1
            # Opening it may also serve a later take (own key each) or put (one key for all).
            serves = 0 if not shut else rec + 2 if rec in source_recs else targets >> rec & 1
            key = (loc if loc in meeting else -1, shut, serves)
            if key not in first:
                first[key] = Place(rec, loc, shut)
        return sorted(first.values(), key=lambda place: (place.loc != here) + place.shut)

    def _check_time(self) -> None:
        if self.deadline is not None and perf_counter() >= self.deadline:
            raise SearchTimeout

    # -- look at an object under a lamp ----------------------------------------------------------

    def _look(self) -> None:
        game, state, held = self.game, self.state, self.held
        lit = self._lit()
        if lit and held >= 0 and self.wanted >> held & 1:
            for loc, (use, errands) in lit.items():
                self._offer((loc != state.loc) + use, errands)
            return
        lamp_held = held >= 0 and bool(game.goal.lamps >> held & 1)
        for cost, source, start in self._first_takes():
            wanted_lamp = game.goal.lamps >> source.obj & 1
            for loc, (use, errands) in (self._lit(source) if wanted_lamp else lit).items():
                total = cost + (loc != source.loc) + use
                if total < self.best:
                    self._offer(total, (*start, *errands))
            if lamp_held:  # it lights where it was put down
                rec = start[0].rec
                use = 1 - (state.toggled >> held & 1)
                total = cost + (game.rec_loc[rec] != source.loc) + use
                self._offer(total, (*start, Errand("use", rec, held if use else -1)))

    def _lit(self, taken: Source | None = None) -> dict[int, tuple[int, tuple[Errand, ...]]]:
        """Where a lamp can light, once `taken` is in hand: location -> cost there, errands."""
        state = self.state
        lit: dict[int, tuple[int, tuple[Errand, ...]]] = {}
        for place in self.tools:
            lamps = state.contents[place.rec] & self.game.goal.lamps
            if taken is not None and taken.rec == place.rec:
                lamps &= ~(1 << taken.obj)
            if lamps & state.toggled:
                lit[place.loc] = (0, (Errand("use", place.rec, -1),))
            elif lamps and place.loc not in lit:
                lamp = (lamps & -lamps).bit_length() - 1
                lit[place.loc] = (1, (Errand("use", place.rec, lamp),))
        return lit

    # -- put one object, treated or not ----------------------------------------------------------

    def _one(self) -> None:
        targets = self._find_targets()
        goal_recs = self.game.goal.receptacles
        placed = placed_twice = 0
        for rec in bits(goal_recs):
            inside = self.state.contents[rec]
            placed_twice |= placed & inside
            placed |= inside
        held = self.held
        if held >= 0 and self.wanted >> held & 1:
            self._finish_one(held, self.state.loc, 0, bool(placed >> held & 1), 0, (), targets)
        for cost, source, start in self._first_takes():
            obj = source.obj
            # An object listed in a second, wanted receptacle stays listed there while it is
            # treated in hand, and so need not be put back.
            elsewhere = placed_twice if goal_recs >> source.rec & 1 else placed
            opened = 1 << source.rec
            if len(start) > 1:
                opened |= 1 << start[0].rec
            self._finish_one(
                obj, source.loc, opened, bool(elsewhere >> obj & 1), cost, start, targets
            )

    def _finish_one(
        self,
        obj: int,
        loc: int,
        opened: int,
        stays_placed: bool,
        cost: int,
        start: tuple[Errand, ...],
        targets: list[Target],
    ) -> None:
        """Treat (if needed) and put `obj`, which is in hand at `loc` after `start`."""
        if self.done >> obj & 1:
            ways: Iterable[tuple[int, int, tuple[Errand, ...]]] = ((cost, loc, start),)
        else:
            ways = [
                (cost + (tool.loc != loc) + 1, tool.loc, (*start, Errand("treat", tool.rec, obj)))
                for tool in self.tools
            ]
            if stays_placed:
                for total, _, errands in ways:
                    self._offer(total, errands)
                return
        game = self.game
        shared = [
            (rec, game.rec_loc[rec])
            for rec in bits(opened & self.closed & game.goal.receptacles)
            if game.can_hold[rec] >> obj & 1
        ]
        for so_far, at, errands in ways:
            if so_far + 1 >= self.best:
                continue
            for rec, rec_loc in shared:
                self._offer(so_far + (rec_loc != at) + 1, (*errands, Errand("put", rec, obj)))
            for target in targets:
                total = so_far + (target.loc != at) + target.shut + 1
                if total < self.best and target.fits >> obj & 1:
                    self._offer(total, (*errands, Errand("put", target.rec, obj)))

    # -- put two objects into one receptacle -----------------------------------------------------

    def _two(self) -> None:
        held, here = self.held, self.state.loc
        drops = self._find_drops() if held >= 0 else []
        for target in self._find_targets():
            self._check_time()
            usable = target.fits & ~target.inside
            sources = [source for source in self.sources if usable >> source.obj & 1]
            if held >= 0 and usable >> held & 1:
                cost = (target.loc != here) + target.shut + 1
                start = (Errand("put", target.rec, held),)
                if target.inside:
                    self._offer(cost, start)
                    continue
                for source in sources:
                    trip = 2 * (source.loc != target.loc) + source.shut + 2
                    if cost + trip < self.best:
                        self._offer(cost + trip, (*start, *fetch_and_put(source, target)))
                continue
            firsts = [
                (cost, source, (*start, Errand("put", target.rec, source.obj)), opened)
                for cost, source, start, opened in self._trips(target, sources, drops)
            ]
            if target.inside:
                for cost, _, errands, _ in firsts:
                    self._offer(cost, errands)
            else:
                self._second_trips(target, sources, firsts)

    def _trips(
        self, target: Target, sources: list[Source], drops: list[Place]
    ) -> Iterable[tuple[int, Source, tuple[Errand, ...], int]]:
        """First trips to `target`: cost, source, errands up to the take, receptacles opened."""
        extra = None
        if self.held >= 0 and target.shut and self.game.can_hold[target.rec] >> self.held & 1:
            extra = Place(target.rec, target.loc, target.shut)
        for cost, source, start in self._first_takes(sources, drops, extra):
            dropped = start[0].rec if len(start) > 1 else -1
            shut = target.shut if dropped != target.rec else 0
            opened = 1 << source.rec
            if dropped >= 0:
                opened |= 1 << dropped
            yield cost + (target.loc != source.loc) + shut + 1, source, start, opened

    def _second_trips(
        self,
        target: Target,
        sources: list[Source],
        firsts: list[tuple[int, Source, tuple[Errand, ...], int]],
    ) -> None:
        trips = sorted(
            (2 * (source.loc != target.loc) + source.shut + 2, index)
            for index, source in enumerate(sources)
        )
        within: dict[int, list[Source]] = {}
        for source in sources:
            if source.shut:
                within.setdefault(source.rec, []).append(source)
        for cost, first, errands, opened in sorted(firsts, key=lambda item: item[0]):
            self._check_time()
            if cost + 2 >= self.best:
                break
            # what is open by then (the first source, where something was dropped) ...
            for rec in bits(opened):
                for second in within.get(rec, ()):
                    total = cost + 2 * (second.loc != target.loc) + 2
                    if total < self.best and second.obj != first.obj:
                        self._offer(total, (*errands, *fetch_and_put(second, target)))
            # ... and everything else
            for trip, index in trips:
                if cost + trip >= self.best:
                    break
                second = sources[index]
                if second.obj != first.obj:
                    self._offer(cost + trip, (*errands, *fetch_and_put(second, target)))

    # -- shared ----------------------------------------------------------------------------------

    def _first_takes(
        self,
        sources: list[Source] | None = None,
        drops: list[Place] | None = None,
        extra: Place | None = None,
    ) -> Iterable[tuple[int, Source, tuple[Errand, ...]]]:
        """Ways to get each source's object in hand, a useless held object put down before.

        Yields the cost so far, the source, and the errands: a take, or a put and a take.
        """
        here, held = self.state.loc, self.held
        if sources is None:
            sources = self.sources
        if held < 0:
            for source in sources:
                self._check_time()
                cost = (source.loc != here) + source.shut + 1
                if cost < self.best:
                    yield cost, source, (Errand("take", source.rec, source.obj),)
            return
        if drops is None:
            drops = self._find_drops()
        if extra is not None:
            drops = [*drops, extra]
        for source in sources:
            self._check_time()
            take = Errand("take", source.rec, source.obj)
            for drop in drops:
                cost = (drop.loc != here) + drop.shut + (source.loc != drop.loc) + 2
                if drop.rec != source.rec:
                    cost += source.shut
                if cost < self.best:
                    yield cost, source, (Errand("put", drop.rec, held), take)

    def _offer(self, cost: int, errands: tuple[Errand, ...]) -> None:
        """Keep the cheapest; of equals the first, so that plans are reproducible."""
        if cost < self.best:
            self.best = cost
            self.errands = errands
