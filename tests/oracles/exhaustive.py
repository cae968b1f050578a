"""True distances to the goal by exhaustive search, for the tests of the ALFWorld planner.

Whole games have too many states to be searched, since everything in the room may lie anywhere. So
the search is in a game with at least as many ways: what the goal does not ask for lies nowhere and
can be picked up everywhere, at no more than the usual cost of one command. Whatever can be done in
the true game can be done there in as many commands, so its distances are never above the true
ones. A plan that wins, and is as long as that, is proven to be shortest; and what cannot be reached
there cannot be reached at all. Nothing here uses the planner.
"""

from __future__ import annotations

from collections import deque

from agent_envs.alfworld import engine
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State, TaskType, bits
from tests.oracles.toy import bare, world_changing


class Easier:
    """A game with at least as many ways as `game`, and so few states that all can be visited.

    Args:
        doors: False: all doors stand open. There are even more ways then, and the distances are
            too short; it still proves what cannot be reached.
    """

    def __init__(self, game: Game, doors: bool = True) -> None:
        self.game = game
        self.doors = doors
        goal = game.goal
        self.keep = goal.objects | goal.lamps
        # Things in hand differ in nothing but in where they can be put down.
        alike: dict[tuple[int, ...], int] = {}
        self.stands_for = list(range(len(game.objs)))
        for obj in range(len(game.objs)):
            if not self.keep >> obj & 1:
                fits = tuple(mask >> obj & 1 for mask in game.can_hold)
                self.stands_for[obj] = alike.setdefault(fits, obj)
        others = bits(game.pickupable & ~self.keep)
        self.others = sorted({self.stands_for[obj] for obj in others})

    def state(self, state: State) -> State:
        """What a true state is in the easier game."""
        keep, kind = self.keep, self.game.goal.kind
        return bare(state)._replace(
            held=self.stands_for[state.held] if state.held >= 0 else -1,
            contents=tuple(mask & keep for mask in state.contents),
            opened=state.opened if self.doors else self.game.openable,
            clean=state.clean & keep if kind is TaskType.CLEAN else 0,
            hot=state.hot & keep if kind is TaskType.HEAT else 0,
            cool=state.cool & keep if kind is TaskType.COOL else 0,
            toggled=state.toggled & self.game.goal.lamps,
        )

    def following(self, node: State) -> set[State]:
        """The states that one command leads to."""
        game = self.game
        found = {
            self.state(engine.step(game, node, command)[0])
            for command in world_changing(game, node)
        }
        if node.held < 0:
            found.update(node._replace(held=obj) for obj in self.others)
        found.discard(node)
        return found

    def distances(self, starts: set[State], limit: int = 10**9) -> dict[State, int] | None:
        """Commands to the goal from all states that can be reached; those without a way are absent.

        None if there are more than `limit` states.
        """
        before: dict[State, list[State]] = {node: [] for node in starts}
        frontier = list(before)
        goals = []
        while frontier:
            node = frontier.pop()
            if won(self.game, node):  # the episode ends here
                goals.append(node)
                continue
            for child in self.following(node):
                if child not in before:
                    if len(before) == limit:
                        return None
                    before[child] = []
                    frontier.append(child)
                before[child].append(node)
        known = dict.fromkeys(goals, 0)
        queue = deque(goals)
        while queue:
            node = queue.popleft()
            for earlier in before[node]:
                if earlier not in known:
                    known[earlier] = known[node] + 1
                    queue.append(earlier)
        return known


def within(game: Game, steps: int) -> list[State]:
    """All states at most `steps` commands away from the start; none beyond a won one."""
    frontier = [bare(game.start)]
    seen = dict.fromkeys(frontier)
    for _ in range(steps):
        following = []
        for node in frontier:
            if won(game, node):
                continue
            for command in world_changing(game, node):
                child = bare(engine.step(game, node, command)[0])
                if child not in seen:
                    seen[child] = None
                    following.append(child)
        frontier = following
    return list(seen)
