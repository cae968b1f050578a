"""Episodes of a policy, and the states of failed ones from which an oracle takes over.

Players here need no model. A trained policy plays in `trainer.banks.policy`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

import agent_envs
from agent_envs import Snapshot
from agent_envs.errors import SeroError
from agent_envs.streams import stream
from oracles.bank import BankRow, PolicyEnd
from oracles.base import HistoryItem
from oracles.branch import RootRecord
from oracles.branches import BranchRequest, BranchRunner

__all__ = [
    "PLAYERS",
    "BankBuildError",
    "DrawnRoots",
    "Walk",
    "collect",
    "draw_roots",
    "gate_shares",
    "walks",
]

ROOT = "bank-root"
PLAY = "bank-play"
"""Purposes of the streams that draw the step of a root, and a player's commands."""
_PLACEHOLDER = re.compile(r"<[^<>]*>")

Player = Callable[[str, Mapping[str, Any], np.random.Generator], str]
"""The next command for an observation and its ``info``; the generator is the walk's own."""


class BankBuildError(SeroError):
    """There are no roots to be had."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One finished episode of a policy: everything before each of its commands."""

    rollout: int
    seen: tuple[RootRecord, ...]
    snapshots: tuple[Snapshot, ...]
    history: tuple[HistoryItem, ...]
    rewards: tuple[float, ...]
    success: bool
    score: float
    end: str
    """The observation after the last command."""

    def request(self, t: int) -> BranchRequest:
        """The branch from before command `t`. Where the environment has no step limit it may take
        as many commands as the policy took from there."""
        root = self.snapshots[t]
        horizon = len(self.history) - t if root.steps_left is None else None
        return BranchRequest(root, self.history[:t], self.seen[t], horizon=horizon)

    def rest(self, t: int) -> PolicyEnd:
        """What the policy did from there on."""
        actions = tuple(item.action for item in self.history[t:])
        return PolicyEnd(actions, self.rewards[t:], self.success, self.score)


def _any(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    commands = _commands(info)
    return commands[int(generator.integers(len(commands)))]


def _first(observation: str, info: Mapping[str, Any], generator: np.random.Generator) -> str:
    return _commands(info)[0]


PLAYERS: dict[str, Player] = {"random": _any, "first": _first}
"""Policies by name. `random` draws among the admissible commands, each as likely; `first` takes
the first. A command with a free text, such as a search, is one more, with the task as its text."""


def walks(env: gymnasium.Env[str, str], player: Player, seed: int) -> Iterator[Walk]:
    """Episodes without end, over the env's own schedule of tasks for `seed`."""
    rollout = 0
    observation, info = env.reset(seed=seed)
    while True:
        generator = stream(seed, rollout=rollout, purpose=PLAY)
        seen: list[RootRecord] = []
        snapshots: list[Snapshot] = []
        history: list[HistoryItem] = []
        rewards: list[float] = []
        over = False
        while not over:
            seen.append(RootRecord(observation, info["admissible_actions"]))
            snapshots.append(agent_envs.snapshot(env))
            command, before = player(observation, info, generator), observation
            observation, reward, terminated, truncated, info = env.step(command)
            history.append(HistoryItem(before, command, bool(info["command_valid"])))
            rewards.append(float(reward))
            over = terminated or truncated
        yield Walk(
            rollout,
            tuple(seen),
            tuple(snapshots),
            tuple(history),
            tuple(rewards),
            bool(info["success"]),
            float(info["score"]),
            observation,
        )
        rollout += 1
        observation, info = env.reset()


def _commands(info: Mapping[str, Any]) -> list[str]:
    filled = [info["goal"].join(_PLACEHOLDER.split(form)) for form in info["action_templates"]]
    commands = [*info["admissible_actions"], *filled]
    if not commands:
        raise BankBuildError(
            f"Task {info['task_id']!r} lists no command in some state, so there is nothing to "
            "choose from. Give a trained run as --policy."
        )
    return commands


@dataclass(frozen=True, slots=True)
class DrawnRoots:
    """States from which an oracle takes over, and how many episodes it took to find them."""

    states: tuple[tuple[Walk, int], ...]
    """A failed walk, and the number of its commands before the root."""
    episodes: int
    won: int


def draw_roots(played: Iterator[Walk], number: int, seed: int) -> DrawnRoots:
    """`number` roots, one of each failed walk: one of its states, each as likely, from a stream of
    its own.

    Raises:
        BankBuildError: hardly a walk fails, or the walks end.
    """
    most = 100 + 20 * number
    states: list[tuple[Walk, int]] = []
    taken = won = 0
    while len(states) < number:
        walk = next(played, None) if taken < most else None
        if walk is None:
            fewer = f"Ask for at most {len(states)}, or name" if states else "Name"
            raise BankBuildError(
                f"Only {len(states)} of {taken} episodes failed, and roots are states of failed "
                f"ones, one of each; asked for are {number}. {fewer} another --policy: this one "
                f"{'hardly fails' if states else 'does not fail'}."
            )
        taken += 1
        won += walk.success
        if not walk.success and walk.snapshots:
            draw = stream(seed, rollout=walk.rollout, purpose=ROOT)
            states.append((walk, int(draw.integers(len(walk.snapshots)))))
    return DrawnRoots(tuple(states), taken, won)


def collect(
    played: Iterator[Walk],
    runner: BranchRunner,
    branches: int,
    *,
    oracle: str,
    policy: str,
    seed: int,
    max_depth: int | None = None,
) -> tuple[list[BankRow], int]:
    """`branches` rows, one of each failed walk, and how many walks it took.

    Raises:
        BankBuildError: hardly a walk fails.
    """
    drawn = draw_roots(played, branches, seed)
    requests = [walk.request(t) for walk, t in drawn.states]
    found = runner.run(requests, max_depth)
    rows = [
        BankRow(
            branch,
            walk.seen[t],
            walk.rest(t),
            oracle,
            policy,
            seed,
            walk.rollout,
            request.limit(max_depth),
        )
        for branch, request, (walk, t) in zip(found, requests, drawn.states, strict=True)
    ]
    return rows, drawn.episodes


def gate_shares(rows: Sequence[BankRow]) -> dict[str, float | None]:
    """By target, the share of branches whose gate is open: valid, and better than the policy.

    None without branches. See `trainer.auxiliary.sero_weights.gate` for how far it is open.
    """
    shares: dict[str, float | None] = {}
    for target in ("success", "score", "reward"):
        open_ones = 0
        for row in rows:
            own, oracle = row.returns(target)
            open_ones += row.branch.valid and oracle > own
        shares[target] = open_ones / len(rows) if rows else None
    return shares
