"""Asking an oracle in a run: for its next command at a visited state, or for a whole episode.

Promises (tests/trainer/methods/test_oracle_rows.py, tests/trainer/test_no_leak.py):

1. The oracle plays in an environment that no rollout uses, from a snapshot whose restored
   observation and admissible commands were compared with the record.
2. The prompt of a row is what the student would have seen there. The privileged view goes to the
   oracle and nowhere else.
3. The target is `<think></think><action>COMMAND</action>` and the end token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import gymnasium

from agent_envs import Snapshot
from agent_envs.prompting import PromptView
from oracles.base import Decision, History, HistoryItem, Oracle, PlanStatus
from oracles.branch import Branch, BranchStep, RootRecord
from oracles.branch import run as run_branch
from trainer.branches.targets import (
    TARGET_TOO_LONG,
    UNSAYABLE,
    branch_prompts,
    branch_target,
    branch_views,
)
from trainer.config import SeroConfig
from trainer.methods.protocol import Setup
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.rollout import Student, Trajectory
from trainer.rollouts.tokens import ReplyTarget
from trainer.worlds.oracles import make_oracle

__all__ = [
    "OracleDesk",
    "OracleEpisode",
    "OracleRow",
    "branch_rows",
    "first_of_groups",
    "oracle_episode",
    "oracle_label",
]

NO_COMMAND = "no_command"
_PLAIN = SeroConfig()
"""Targets with an empty thought, trained on command, closing tag and end token."""


@dataclass(frozen=True, slots=True)
class OracleRow:
    """One command of the oracle, as the student would be asked for it.

    Attributes:
        view: what the student would have seen.
        step: what the oracle did and what the env answered.
        prompt_ids, target: the training sequence.
    """

    view: PromptView
    step: BranchStep
    prompt_ids: tuple[int, ...]
    target: ReplyTarget

    def segment(self) -> Segment:
        """Trained on command, closing tag and end token, at temperature 1."""
        return make_segment(self.prompt_ids, self.target.ids, mask=self.target.loss_mask)


@dataclass(frozen=True, slots=True)
class OracleEpisode:
    """What an oracle did from a state on.

    Attributes:
        branch: all of it.
        reasons: why it may not be used; a row that does not fit is one. Empty: it may.
        rows: one a command; empty where it may not be used.
    """

    branch: Branch
    reasons: tuple[str, ...]
    rows: tuple[OracleRow, ...]

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def solved(self) -> bool:
        """Usable, and the oracle solved the task."""
        return self.valid and self.branch.success


def oracle_label(
    env: gymnasium.Env[str, str],
    oracle: Oracle[Any],
    snapshot: Snapshot,
    *,
    history: History = (),
    expected: RootRecord | None = None,
    root_step: int | None = None,
) -> str | None:
    """The oracle's command at one state; None where it has none that the env accepts.

    A command counts also where the steps that are left do not suffice to reach the goal.

    Args:
        env: one that no rollout uses; its running episode is lost.
        history, expected, root_step: see `oracles.branch.run`.
    """
    branch = run_branch(
        env,
        snapshot,
        _FirstCommand(oracle),
        1,
        history=history,
        expected=expected,
        root_step=root_step,
    )
    return branch.steps[0].action if branch.valid else None


def oracle_episode(
    env: gymnasium.Env[str, str],
    oracle: Oracle[Any],
    snapshot: Snapshot,
    student: Student,
    *,
    max_target_tokens: int,
    horizon: int | None = None,
    history: History = (),
    expected: RootRecord | None = None,
    root_step: int | None = None,
    before: Sequence[Turn] = (),
) -> OracleEpisode:
    """Lets the oracle play from `snapshot` to the end, and makes the student's rows of it.

    Args:
        max_target_tokens: longest target; a longer one makes the episode unusable.
        horizon: commands that may be run; None: all that the env allows.
        before: the turns before `snapshot`; needed in chat, see `branch_prompts`.
        env, history, expected, root_step: as for `oracle_label`.
    """
    branch = run_branch(
        env,
        snapshot,
        oracle,
        horizon,
        history=history,
        expected=expected,
        root_step=root_step,
    )
    reasons = branch.reasons
    rows: list[OracleRow] = []
    if branch.valid:
        rows, reasons = branch_rows(branch, student, max_target_tokens, before)
    return OracleEpisode(branch, reasons, () if reasons else tuple(rows))


def branch_rows(
    branch: Branch, student: Student, max_target_tokens: int, before: Sequence[Turn] = ()
) -> tuple[list[OracleRow], tuple[str, ...]]:
    """Rows of a branch, and why some of its steps have none; each reason once."""
    rows: list[OracleRow] = []
    reasons: dict[str, None] = {}
    prompts = branch_prompts(branch, student, _PLAIN, before)
    for view, prompt_ids, step in zip(branch_views(branch), prompts, branch.steps, strict=True):
        target = branch_target(step, prompt_ids, student, _PLAIN, max_target_tokens)
        if isinstance(target, str):
            reasons[target] = None
        else:
            rows.append(OracleRow(view, step, prompt_ids, target))
    return rows, tuple(reasons)


def first_of_groups(trajectories: Sequence[Trajectory]) -> Iterator[tuple[int, Trajectory]]:
    """(index, trajectory): one of each group, in order; groups without any turn are left out."""
    seen: set[str] = set()
    for index, trajectory in enumerate(trajectories):
        uid = trajectory.episode.uid
        if trajectory.turns and uid not in seen:
            seen.add(uid)
            yield index, trajectory


class OracleDesk:
    """An oracle with an environment of its own, where recorded states are put before it.

    Args:
        setup: with `make_env`.
        section: a config section with `oracle` and `oracle_budget_s`.
    """

    def __init__(self, setup: Setup, section: Any) -> None:
        assert setup.make_env is not None, "an oracle needs an environment"
        self.env = setup.make_env()
        self.student = setup.student
        config = setup.config
        self.oracle = make_oracle(section.oracle, section.oracle_budget_s, config.env.id)
        self.max_target_tokens = config.rollout.max_new_tokens
        self._seconds: list[float] = []
        self._reasons: Counter[str] = Counter()

    def start(self) -> None:
        """Begins a new iteration's figures."""
        self._seconds = []
        self._reasons = Counter()

    def label(self, trajectory: Trajectory, t: int) -> str | None:
        """The oracle's command at turn `t` of a trajectory; see `oracle_label`."""
        began = perf_counter()
        found = oracle_label(
            self.env, self.oracle, trajectory.snapshots[t], **_place(trajectory, t)
        )
        self._seconds.append(perf_counter() - began)
        self._reasons.update([NO_COMMAND] if found is None else [])
        return found

    def episode(
        self, trajectory: Trajectory, t: int = 0, horizon: int | None = None
    ) -> OracleEpisode:
        """The oracle plays on from turn `t` of a trajectory; see `oracle_episode`."""
        began = perf_counter()
        found = oracle_episode(
            self.env,
            self.oracle,
            trajectory.snapshots[t],
            self.student,
            max_target_tokens=self.max_target_tokens,
            horizon=horizon,
            before=trajectory.turns[:t],
            **_place(trajectory, t),
        )
        self._seconds.append(perf_counter() - began)
        self._reasons.update(found.reasons)
        return found

    def target(self, command: str) -> ReplyTarget | None:
        """The reply that sends `command`; None, counted, where none does or it is too long."""
        target = self.student.target(command)
        if len(target.ids) > self.max_target_tokens:
            self._reasons.update([TARGET_TOO_LONG])
            return None
        if not self.student.sends(target.ids, command):
            self._reasons.update([UNSAYABLE])
            return None
        return target

    def metrics(self, name: str) -> dict[str, Any]:
        """How often and how long the oracle was asked since `start`, and what went wrong."""
        return {
            f"{name}/asked": len(self._seconds),
            f"{name}/invalid_reasons": dict(self._reasons),
            f"{name}/oracle_s": math.fsum(self._seconds),
        }


def _place(trajectory: Trajectory, t: int) -> dict[str, Any]:
    """What the student had seen and done before turn `t`, and what it saw there."""
    turn = trajectory.turns[t]
    history = trajectory.history_before(t)
    return {
        "history": tuple(HistoryItem(*item) for item in history.items),
        "expected": RootRecord(turn.observation, turn.admissible),
        "root_step": t,
    }


class _FirstCommand:
    """An oracle that names the first command of a plan even where the plan is too long."""

    def __init__(self, oracle: Oracle[Any]) -> None:
        self._oracle = oracle
        self.privileged = oracle.privileged

    def start(self, view: Any, history: History) -> Any:
        return self._oracle.start(view, history)

    def act(self, state: Any, view: Any, observation: str) -> tuple[Decision, Any]:
        decision, state = self._oracle.act(state, view, observation)
        if decision.status is PlanStatus.OVER_BUDGET and decision.action is not None:
            decision = replace(decision, status=PlanStatus.FOUND)
        return decision, state
