"""Executable continuations: restore a visited state in a separate env and let an oracle act.

A branch is what the student would have seen had the oracle taken over. Everything in it except
the snapshot at its root is student-visible: observations, admissible commands, the oracle's
commands, rewards and flags. The privileged view goes to the oracle and nowhere else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from traceback import extract_tb, format_exception_only
from typing import Any

import gymnasium

import agent_envs
from agent_envs import Snapshot
from oracles.base import Decision, History, Oracle, PlanStatus

FAILURES = (Exception, SystemExit)
"""What the code of an oracle or an env may raise and cost no more than its branch. A call of
`sys.exit` in it must not end the program: exit code 0 would read as success."""


class BranchStatus(StrEnum):
    """How a branch ended."""

    OK = "ok"
    """The episode ended: with success or at the env's step limit."""
    HORIZON = "horizon"
    """The caller's horizon was reached before the episode ended."""
    STOPPED = "stopped"
    """The oracle or the env stopped it; `Branch.reasons` says why."""
    NOT_STARTED = "not_started"
    """The root could not be restored and verified, so no command was run."""


class Reason:
    """Codes in `Branch.reasons`. ``oracle_<status>`` stands for a `PlanStatus` without a way on."""

    RESTORE_ERROR = "restore_error"
    RESTORE_MISMATCH = "restore_mismatch"
    EPISODE_OVER = "episode_over"
    NO_HORIZON = "no_horizon"
    NO_ACTION = "no_action"
    INADMISSIBLE = "inadmissible"
    REFUSED = "refused"
    ORACLE_ERROR = "oracle_error"
    ENV_ERROR = "env_error"
    NON_FINITE = "non_finite"

    @staticmethod
    def of_status(status: PlanStatus) -> str:
        """The code for an oracle that stopped with `status`."""
        return f"oracle_{status.value}"


@dataclass(frozen=True, slots=True)
class RootRecord:
    """What the student saw at the root before it acted, to be compared after the restore."""

    observation: str
    admissible: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BranchStep:
    """One command of the oracle. Student-visible fields only."""

    observation: str
    """What the student would have read before the command."""
    admissible: tuple[str, ...]
    action_templates: tuple[str, ...]
    action: str
    reward: float
    """The env's raw reward."""
    command_valid: bool
    terminated: bool
    truncated: bool
    next_observation: str
    thought: str | None = None
    """What the oracle said about the command, for the student; None: it says nothing."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A continuation from `root`.

    Equality ignores the timings, so that two runs of one branch compare equal.
    """

    status: BranchStatus
    valid: bool
    """Usable as supervision: verified restore, at least one command, every command admissible
    and accepted, no error, finite returns. Success is not required. False iff `reasons`."""
    reasons: tuple[str, ...]
    detail: str
    """`reasons` in words, for people; may hold privileged facts, so it never enters a prompt."""
    steps: tuple[BranchStep, ...]
    success: bool
    score: float
    """The task score after the last step, 0 without steps."""
    total_reward: float
    """Undiscounted sum of the raw rewards of `steps`."""
    root: Snapshot
    steps_left: int | None
    """At the root, over the whole wrapper stack. None: no limit, or not restored."""
    goal: str
    history: History
    """The student's record up to the root."""
    root_step: int
    """Steps that the student had taken at the root."""
    restore_s: float = field(default=0.0, compare=False)
    oracle_s: float = field(default=0.0, compare=False)
    env_s: float = field(default=0.0, compare=False)
    """Seconds spent in restoring, in the oracle, and in the env: its steps and its privileged
    view."""
    next_admissible: tuple[str, ...] = ()
    """Admissible commands after the last step; empty without steps."""


def run(
    env: gymnasium.Env[str, str],
    snapshot: Snapshot,
    oracle: Oracle[Any],
    horizon: int | None = None,
    *,
    history: History = (),
    expected: RootRecord | None = None,
    root_step: int | None = None,
) -> Branch:
    """Restore `snapshot` in `env` and run `oracle` until the episode or the horizon ends.

    Failures of the oracle, the restore and the env are data in the result, not exceptions: a
    batch of branches always comes back whole.

    Args:
        env: an env of the snapshot's kind that no rollout uses (`agent_envs.fork` or
            ``gymnasium.make``). Its running episode is lost.
        oracle: asked once per step. It gets the privileged view only if it says that it is
            privileged, and None otherwise.
        horizon: commands that may be run; never more than `agent_envs.remaining_steps` at the
            root. None: all of these. Without either limit nothing is run.
        history: the student's own record up to the root, refused commands included, for oracles
            that see only what the student saw.
        expected: what the student saw at the root. Any difference after the restore makes the
            branch invalid, and nothing is run.
        root_step: steps the student had taken at the root. None: the length of `history`.
    """
    return _Run(env, snapshot, oracle, horizon, history, expected, root_step).result()


class _Run:
    def __init__(
        self,
        env: gymnasium.Env[str, str],
        snapshot: Snapshot,
        oracle: Oracle[Any],
        horizon: int | None,
        history: History,
        expected: RootRecord | None,
        root_step: int | None,
    ) -> None:
        self.env = env
        self.snapshot = snapshot
        self.oracle = oracle
        self.horizon = horizon
        self.history = tuple(history)
        self.expected = expected
        self.root_step = len(history) if root_step is None else root_step
        self.steps: list[BranchStep] = []
        self.reasons: list[str] = []
        self.details: list[str] = []
        self.info: dict[str, Any] = {}
        self.admissible: tuple[str, ...] = ()
        self.templates: tuple[str, ...] = ()
        self.steps_left: int | None = None
        self.restore_s = self.oracle_s = self.env_s = 0.0

    def result(self) -> Branch:
        observation = self._restore()
        if observation is None:
            status = BranchStatus.NOT_STARTED
        else:
            status = self._continue(observation)
            if not all(map(math.isfinite, (self._total(), self._score()))):
                self._fail(Reason.NON_FINITE, "a reward or the score is not finite")
        return Branch(
            status=status,
            valid=not self.reasons,
            reasons=tuple(self.reasons),
            detail="; ".join(self.details),
            steps=tuple(self.steps),
            success=bool(self.steps) and bool(self.info.get("success", False)),
            score=self._score() if self.steps else 0.0,
            total_reward=self._total(),
            root=self.snapshot,
            steps_left=self.steps_left,
            goal=str(self.info.get("goal", "")),
            history=self.history,
            root_step=self.root_step,
            restore_s=self.restore_s,
            oracle_s=self.oracle_s,
            env_s=self.env_s,
            next_admissible=self.admissible if self.steps else (),
        )

    def _total(self) -> float:
        return float(sum(step.reward for step in self.steps))

    def _score(self) -> float:
        return float(self.info.get("score", 0.0))

    def _fail(self, reason: str, detail: str) -> None:
        self.reasons.append(reason)
        words = f"{reason}: {detail}" if detail else reason
        # A bank is UTF-8, which has no halves of characters.
        self.details.append(words.encode("utf-8", "backslashreplace").decode("utf-8"))

    def _restore(self) -> str | None:
        """Restore and verify the root; its observation, or None after a failure."""
        began = perf_counter()
        try:
            observation, self.info = agent_envs.restore(self.env, self.snapshot)
            self.admissible = self.info["admissible_actions"]
            self.templates = tuple(self.info.get("action_templates", ()))
            self.steps_left = agent_envs.remaining_steps(self.env)
        except FAILURES as error:
            self._fail(Reason.RESTORE_ERROR, _words(error))
            return None
        finally:
            self.restore_s = perf_counter() - began
        expected = self.expected
        if expected is not None:
            if expected.observation != observation:
                self._fail(
                    Reason.RESTORE_MISMATCH,
                    f"observation recorded {expected.observation!r}, restored {observation!r}",
                )
            if tuple(expected.admissible) != self.admissible:
                changed = set(expected.admissible) ^ set(self.admissible)
                self._fail(
                    Reason.RESTORE_MISMATCH,
                    f"admissible commands differ: {sorted(changed) or 'in their order'}",
                )
        if self.info.get("stop_reason") is not None:
            self._fail(Reason.EPISODE_OVER, f"stop reason {self.info['stop_reason']!r}")
        self.reasons = list(dict.fromkeys(self.reasons))
        return None if self.reasons else observation

    def _continue(self, observation: str) -> BranchStatus:
        limit = self.horizon
        if self.steps_left is not None:
            limit = self.steps_left if limit is None else min(limit, self.steps_left)
        if limit is None or limit < 1:
            self._fail(Reason.NO_HORIZON, f"{limit} commands may be run; give a horizon above 0")
            return BranchStatus.STOPPED
        try:
            privileged = bool(self.oracle.privileged)
        except FAILURES as error:
            self._fail(Reason.ORACLE_ERROR, _words(error))
            return BranchStatus.STOPPED
        state: Any = None
        while len(self.steps) < limit:
            began = perf_counter()
            try:
                view = self._view() if privileged else None
            except FAILURES as error:
                self._fail(Reason.ENV_ERROR, _words(error))
                return BranchStatus.STOPPED
            finally:
                self.env_s += perf_counter() - began
            began = perf_counter()
            try:
                if not self.steps:
                    state = self.oracle.start(view, self.history)
                decision, state = self.oracle.act(state, view, observation)
                if not isinstance(decision, Decision):
                    raise TypeError(f"act must give a Decision, got {type(decision).__name__}")
                if not isinstance(decision.status, PlanStatus):
                    raise TypeError(f"a status is a PlanStatus, got {decision.status!r}")
                if not isinstance(decision.thought, str | None):
                    raise TypeError(f"a thought is a str or None, got {decision.thought!r}")
                for text in (decision.action, decision.thought):
                    if isinstance(text, str):
                        text.encode()  # no bank could hold halves of characters
            except FAILURES as error:
                self._fail(Reason.ORACLE_ERROR, _words(error) + _place(error))
                return BranchStatus.STOPPED
            finally:
                self.oracle_s += perf_counter() - began
            action = self._checked(decision)
            if action is None:
                return BranchStatus.STOPPED
            step = self._step(observation, action, decision.thought)
            if step is None:
                return BranchStatus.STOPPED
            self.steps.append(step)
            observation = step.next_observation
            if not step.command_valid:
                self._fail(Reason.REFUSED, f"the env refused {action!r}")
                return BranchStatus.STOPPED
            if step.terminated or step.truncated:
                return BranchStatus.OK
        return BranchStatus.HORIZON

    def _view(self) -> Any:
        unwrapped: Any = self.env.unwrapped
        return unwrapped.privileged()

    def _checked(self, decision: Decision) -> str | None:
        """The decided command if it may be run; otherwise None, with the reason noted."""
        if decision.status is not PlanStatus.FOUND:
            self._fail(Reason.of_status(decision.status), decision.detail)
            return None
        action = decision.action
        if not isinstance(action, str) or not action.strip():
            self._fail(Reason.NO_ACTION, f"status {decision.status.value!r}, action {action!r}")
            return None
        if action not in self.admissible and not any(
            _pattern(template).fullmatch(action) for template in self.templates
        ):
            self._fail(Reason.INADMISSIBLE, f"{action!r} is not among the admissible commands")
            return None
        return action

    def _step(self, observation: str, action: str, thought: str | None) -> BranchStep | None:
        began = perf_counter()
        try:
            following, reward, terminated, truncated, info = self.env.step(action)
            step = BranchStep(
                observation=observation,
                admissible=self.admissible,
                action_templates=self.templates,
                action=action,
                reward=float(reward),
                command_valid=bool(info["command_valid"]),
                terminated=terminated,
                truncated=truncated,
                next_observation=following,
                thought=thought,
            )
            self.admissible = info["admissible_actions"]
            self.templates = tuple(info.get("action_templates", ()))
        except FAILURES as error:
            self._fail(Reason.ENV_ERROR, _words(error))
            return None
        finally:
            self.env_s += perf_counter() - began
        self.info = info
        return step


@lru_cache(maxsize=64)
def _pattern(template: str) -> re.Pattern[str]:
    """A template such as ``search[<query>]`` as a pattern; each placeholder is a non-empty text."""
    parts = re.split(r"<[^<>]*>", template)
    return re.compile(".+".join(map(re.escape, parts)), re.DOTALL)


def _words(error: BaseException) -> str:
    # also where the error's own `__str__` fails
    return "".join(format_exception_only(error)).strip()


def _place(error: BaseException) -> str:
    """Where the oracle's code raised it; nothing where that was not in the oracle.

    The file without its folder: a bank holds these words, the same on every machine.
    """
    frames = [f for f in extract_tb(error.__traceback__) if f.filename != __file__]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
