"""Promises about steps and about the end of an episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

import agent_envs
from agent_envs.forking import layers_of
from agent_envs.testing.report import Broken, promise
from agent_envs.testing.subject import (
    NONSENSE,
    Env,
    Subject,
    Taken,
    Unchecked,
    actions_in,
    follow,
    same,
    short,
    take,
)

_ODD: tuple[Any, ...] = (
    *("", " ", NONSENSE, "\n", "look\ninventory", "> look", "é™😀\x00", "x" * 5000),
    *(None, 7, b"look", ("look",), 1.5),
)
"""Actions that no text world understands, the last ones no text at all."""
_LONG = 1000
"""More steps than are played to see an episode run out."""


@promise("step returns an observation, a finite reward, two bools and a new dict.")
def check_step_results(subject: Subject) -> None:
    """What every loop over an env relies on."""
    env = subject.env
    for number in range(subject.walks):
        _, info = env.reset(seed=subject.seed + number)
        seen = [info]
        for taken in subject.walk(env, info, number):
            reward = taken.reward
            good = isinstance(reward, (int, float, np.number)) and not isinstance(reward, bool)
            if not good or not math.isfinite(reward):
                raise Broken(f"reward {short(reward)}", "a finite number", "a reward was not set")
            for name in ("terminated", "truncated"):
                flag = getattr(taken, name)
                if type(flag) is not bool:
                    raise Broken(
                        f"{name} {short(flag)} ({type(flag).__name__})",
                        "True or False",
                        "a NumPy bool or None is passed on",
                    )
            if type(taken.info) is not dict or any(taken.info is old for old in seen):
                raise Broken(
                    f"info is {'the same object again' if type(taken.info) is dict else 'no dict'}",
                    "a new dict at each step",
                    "the env keeps one dict and updates it",
                )
            seen.append(taken.info)


@promise("Every admissible command is accepted where it is listed.")
def check_admissible_accepted(subject: Subject) -> None:
    """O3: a policy that is shown a list may trust it."""
    env = subject.env
    for number in range(subject.walks):
        trace, (_, info) = subject.point(env, number)
        listed = info["admissible_actions"]
        for action in listed:
            if action not in env.action_space or listed.count(action) > 1:
                raise Broken(
                    f"{short(action)} is listed "
                    + ("twice" if action in env.action_space else "and outside of action_space"),
                    "distinct elements of action_space",
                    "the list is built without looking at the space, or from facts that repeat",
                )
        rng = subject.rng(number)
        for place in rng.permutation(len(listed))[: max(4, subject.steps)]:
            env.reset(seed=subject.seed + number)
            follow(env, actions_in(trace))
            taken = take(env, listed[place])
            if not taken.info["command_valid"]:
                raise Broken(
                    f"{short(listed[place])} is listed, but answered by {short(taken.observation)}",
                    "info['command_valid'] True",
                    "list and rules disagree about when the command works",
                )


@promise("What the world does not understand is refused, changes nothing, and costs one step.")
def check_invalid_is_noop(subject: Subject) -> None:
    """O5, O7: empty, huge, odd and non-text actions are answered like any other.

    Checked without the wrappers, which may show how much time has passed.
    """
    env = subject.env.unwrapped
    for number in range(subject.walks):
        trace, (_, info) = subject.point(env, number)
        room = agent_envs.remaining_steps(env)
        if room == 1:  # the first refusal would end the episode: from its start, then
            trace, (_, info) = [], env.reset(seed=subject.seed + number)
            room = agent_envs.remaining_steps(env)
        if room == 1:
            raise Unchecked("episodes have a single step")
        later = subject.walk(env, info, number)
        # As many at once as leave room for what comes later; in a short episode, half of it.
        many = len(_ODD) if room is None else max(room - len(later) - 1, room // 2)
        for first in range(0, len(_ODD), many):
            env.reset(seed=subject.seed + number)
            follow(env, actions_in(trace))
            _check_refusals(env, info, _ODD[first : first + many], later)


def _check_refusals(
    env: Env, info: dict[str, Any], odd: Sequence[Any], later: Sequence[Taken]
) -> None:
    """Play `odd`, which is to be refused, and then what was played `later` without it."""
    generator = agent_envs.snapshot(env).rng_state
    for action in odd:
        taken = take(env, action)
        _check_refusal(env, info, taken)
        info = taken.info
    if agent_envs.snapshot(env).rng_state != generator:
        raise Broken(
            "refused commands draw from the generator",
            "the generator as it was",
            "random numbers are drawn before the command is understood",
        )
    for one, other in zip(later, follow(env, actions_in(later)), strict=False):
        for name in ("observation", "reward", "terminated"):
            if not same(getattr(one, name), getattr(other, name)):
                raise Broken(
                    f"after refused commands, {short(one.action)}: {name} "
                    f"{short(getattr(other, name))}",
                    short(getattr(one, name)),
                    "a refused command changes the world",
                )


def _check_refusal(env: Env, before: dict[str, Any], taken: Taken) -> None:
    after, action = taken.info, short(taken.action)
    expected = {
        "command_valid": False,
        "success": False,
        "admissible_actions": before["admissible_actions"],
        "steps_left": None if before["steps_left"] is None else before["steps_left"] - 1,
    }
    if taken.over or taken.reward != 0:
        raise Broken(
            f"{action}: reward {taken.reward}, terminated {taken.terminated}, truncated "
            f"{taken.truncated}",
            "reward 0 and an episode that goes on",
            "an action that is not understood is treated as one that is",
        )
    for key, value in expected.items():
        if not same(after[key], value):
            cause = {
                "command_valid": "the env accepts it, or does not report the refusal",
                "steps_left": "a refused command must cost exactly one step",
            }.get(key, "a refused command changes the world")
            raise Broken(f"{action}: info[{key!r}] {short(after[key])}", short(value), cause)
    if taken.observation not in env.observation_space:
        raise Broken(
            f"{action}: observation {short(taken.observation)}",
            "a text of observation_space",
            "the action is repeated in the answer without a bound",
        )


@promise("Running out of steps truncates: not terminated, no success, steps counted one by one.")
def check_step_budget(subject: Subject) -> None:
    """O6: a time-out is never a success."""
    env = subject.env
    env.reset(seed=subject.seed)
    total = _bounded(env)
    for number in range(1, total + 1):
        taken, left = take(env, NONSENSE), agent_envs.remaining_steps(env)
        where = f"step {number} of {total}, all refused"
        if left != total - number:
            raise Broken(
                f"{where}: remaining_steps {left}",
                str(total - number),
                "a step is not counted, or counted twice",
            )
        ended = bool(taken.terminated), bool(taken.truncated), bool(taken.info["success"])
        if ended != (False, number == total, False):
            raise Broken(
                f"{where}: terminated {ended[0]}, truncated {ended[1]}, success {ended[2]}",
                f"terminated False, truncated {number == total}, success False",
                "the end of the budget is treated as a success, or comes too early or too late",
            )
        out = taken.info["steps_left"] == 0
        if taken.info["stop_reason"] != ("step_limit" if out else None):
            raise Broken(
                f"{where}: stop_reason {taken.info['stop_reason']!r}",
                repr("step_limit" if out else None),
                "stop_reason is not set at the end of the env's own budget, and only there",
            )


@promise("What the task ends is terminated, also on the last allowed step, and nothing else is.")
def check_success(subject: Subject) -> None:
    """O6: checked on random walks, and on the commands of `plan` where it is given."""
    env = subject.env
    won = False
    for number in range(subject.walks):
        _, info = env.reset(seed=subject.seed + number)
        for late in (False, True) if subject.plan else (False,):
            if subject.plan is None:
                left = agent_envs.remaining_steps(env)
                trace = subject.walk(env, info, number, min(left or _LONG, 10 * subject.steps))
            else:
                env.reset(seed=subject.seed + number)
                trace = _win(env, subject.plan(env), late)
            for taken in trace:
                _check_flags(env, taken)
            ended = trace[-1]
            won = won or bool(ended.info["success"])
            if subject.plan is not None and not (ended.terminated and ended.info["success"]):
                raise Broken(
                    f"the plan ends with {short(ended.observation)}, terminated "
                    f"{ended.terminated}, truncated {ended.truncated}"
                    + (" on the last allowed step" if late else ""),
                    "terminated True, a success",
                    "a success on the last step is taken for a time-out"
                    if late
                    else "the plan does not win, or winning does not end the episode",
                )
    if not won:
        raise Unchecked("no walk ended in success: give plan=, which tells how to win")


def _win(env: Env, plan: Sequence[str], late: bool) -> list[Taken]:
    """Play `plan`; `late`: so that it ends on the last allowed step."""
    left = agent_envs.remaining_steps(env)
    wait = 0 if left is None or not late else max(0, left - len(plan))
    if wait > _LONG:
        wait = 0
    return follow(env, [*[NONSENSE] * wait, *plan])


def _check_flags(env: Env, taken: Taken) -> None:
    info = taken.info
    expected: dict[str, Any] = {"success": bool(taken.terminated)}
    if taken.terminated:
        # The task may end without a success, and then says how.
        ended = info["stop_reason"] not in (None, "step_limit")
        expected["success"] = info["stop_reason"] == "success"
        expected["stop_reason"] = info["stop_reason"] if ended else "success"
    elif not taken.truncated:
        expected["stop_reason"] = None
    for key, value in expected.items():
        if info[key] != value:
            raise Broken(
                f"{short(taken.action)}: terminated {taken.terminated}, info[{key!r}] "
                f"{short(info[key])}",
                short(value),
                "the flags and info are set in different places, and one was forgotten",
            )
    if (
        taken.terminated
        and taken.truncated
        and not any(isinstance(layer, TimeLimit) for layer in layers_of(env)[0])
    ):
        raise Broken(
            f"{short(taken.action)}: terminated and truncated",
            "truncated False: the episode was won in time",
            "a success on the last step is taken for a time-out",
        )
    if taken.truncated and agent_envs.remaining_steps(env) != 0:
        raise Broken(
            f"{short(taken.action)}: truncated with {agent_envs.remaining_steps(env)} steps left",
            "truncated only when no step is left",
            "the episode is cut off by a rule of its own, unknown to remaining_steps",
        )


@promise("After the end of an episode step raises ResetNeeded, and reset starts a new one.")
def check_step_after_end(subject: Subject) -> None:
    """No step is lost silently, and no episode starts by itself."""
    env = subject.env
    env.reset(seed=subject.seed)
    total = agent_envs.remaining_steps(env)
    if subject.plan is not None:
        trace = follow(env, subject.plan(env))
    else:
        trace = follow(env, [NONSENSE] * _bounded(env))
    if not trace[-1].over:
        raise Unchecked("the episode did not end")
    limited = any(isinstance(layer, TimeLimit) for layer in layers_of(env)[0])
    if limited and env.unwrapped.remaining_steps != 0:  # type: ignore[attr-defined]
        raise Unchecked("a TimeLimit ended the episode, after which Gymnasium lets the env go on")
    try:
        after = take(env, NONSENSE)
    except gymnasium.error.ResetNeeded:
        pass
    else:
        raise Broken(
            f"one more step: {short(after.observation)}",
            "ResetNeeded",
            "step does not look whether the episode is over, or a wrapper restarts it",
        )
    _, info = env.reset(seed=subject.seed)
    left = agent_envs.remaining_steps(env)
    early = take(env, any_first(info)).info["stop_reason"] not in (None, "success")
    if left != total or (early and total != 1):
        raise Broken(
            "the first step after reset ends the episode"
            if early and total != 1
            else f"after the next reset {left} steps are left, where there were {total}",
            "a new episode with a budget of its own",
            "reset leaves the counters of the last episode behind",
        )


def any_first(info: dict[str, Any]) -> Any:
    """The first command listed, or nonsense."""
    return (info["admissible_actions"] or (NONSENSE,))[0]


def _bounded(env: Env) -> int:
    total = agent_envs.remaining_steps(env)
    if total is None or total > _LONG:
        raise Unchecked(f"the episode has no limit of at most {_LONG} steps")
    return total
