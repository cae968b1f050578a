"""Promises about spaces, seeds and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agent_envs
from agent_envs.errors import InvalidOption, ResetNeeded, TaskNotFound
from agent_envs.testing.report import Broken, promise
from agent_envs.testing.subject import (
    NONSENSE,
    Subject,
    Unchecked,
    actions_in,
    difference,
    follow,
    short,
    start_difference,
)

_SAMPLES = 200
_FEW = 64
"""As many tasks as a whole epoch of them is played through."""


@promise("Observations are in observation_space; samples of both spaces are in them, printable.")
def check_spaces(subject: Subject) -> None:
    """O13: a plain Text space rejects what its charset does not foresee."""
    env = subject.env
    for number in range(subject.walks):
        observation, info = env.reset(seed=subject.seed + number)
        shown = [("reset", observation)]
        shown += [(f"step {short(t.action)}", t.observation) for t in subject.walk(env, info)]
        for where, text in shown:
            if text not in env.observation_space:
                raise Broken(
                    f"after {where}: {short(text)}, not in {env.observation_space}",
                    "an element of the observation space",
                    "the space is too short or has a charset; use agent_envs.AnyText",
                )
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        for _ in range(_SAMPLES):
            sample = space.sample()
            if sample not in space or (
                isinstance(sample, str) and not (sample + " ").isprintable()
            ):
                raise Broken(
                    f"{name}.sample() gave {short(sample)}",
                    "a printable element of the space itself",
                    "sample() does not keep to the length and characters of contains()",
                )


@promise("reset(seed=s) depends on s alone, never on what came before.")
def check_seeded_reset(subject: Subject) -> None:
    """O12: one seed has one start, however often and whenever it is used."""
    env = subject.env
    cause = (
        "reset leaves something of the last episode behind, or draws from a generator other than "
        "self.np_random"
    )
    for seed in dict.fromkeys((subject.seed, 0, 1234)):
        first = env.reset(seed=seed)
        for _ in range(2):
            unequal = start_difference(first, env.reset(seed=seed))
            if unequal is not None:
                raise Broken(f"reset(seed={seed}) twice: {unequal[0]}", unequal[1], cause)
        trace = subject.walk(env, first[1])
        _, info = env.reset(seed=seed + 7)
        subject.walk(env, info, 1, 3)
        env.reset()
        unequal = start_difference(first, env.reset(seed=seed))
        if unequal is not None:
            raise Broken(
                f"reset(seed={seed}) after other episodes: {unequal[0]}", unequal[1], cause
            )
        later = difference(trace, follow(env, actions_in(trace)))
        if later is not None:
            raise Broken(
                f"the episode of reset(seed={seed}), played again: {later[0]}", later[1], cause
            )


@promise("Seeds 0 and 1 start differently.")
def check_seeds_differ(subject: Subject) -> None:
    """O12: 0 is a seed, and no seed is ignored."""
    env = subject.env
    if len(getattr(env.unwrapped, "task_ids", ("", ""))) < 2:
        raise Unchecked("the env has a single task")
    starts = [env.reset(seed=seed) for seed in (0, 1)]
    if start_difference(*starts) is None:
        raise Broken(
            f"both start with {short(starts[0][0])}",
            "another task or another start",
            "the seed is not used, or 0 is taken for no seed (ask `seed is None`)",
        )


@promise("options={'task_id': t} starts task t; unknown tasks and options are typed errors.")
def check_task_on_request(subject: Subject) -> None:
    """O2: the same task again on request; a mistake leaves the running episode as it is."""
    env = subject.env
    ids = _task_ids(subject)
    for task_id in (*ids[:2], ids[-1]):
        first = env.reset(seed=subject.seed, options={"task_id": task_id})
        if first[1].get("task_id") != task_id:
            raise Broken(
                f"info['task_id'] {short(first[1].get('task_id'))}",
                repr(task_id),
                "reset does not read options['task_id']",
            )
        subject.walk(env, first[1])
        again = env.reset(seed=subject.seed, options={"task_id": task_id})
        unequal = start_difference(first, again)
        if unequal is not None:
            raise Broken(
                f"{task_id!r} a second time: {unequal[0]}",
                unequal[1],
                "the start of a task depends on what was played before",
            )
    follow(env, [NONSENSE] * 2)
    # Of the env alone: Gymnasium's TimeLimit starts counting anew before the env has its say.
    before = agent_envs.snapshot(env.unwrapped)
    no_task = "no such task: " + ids[0]
    for options, kind in (({"task_id": no_task}, TaskNotFound), ({"no such": 1}, InvalidOption)):
        error = _error_of(lambda options=options: env.reset(options=options))  # type: ignore[misc]
        if not isinstance(error, kind):
            raise Broken(
                f"reset(options={options!r}): {_named(error)}",
                kind.__name__,
                "an unknown task or option is ignored, or raises an error of another type",
            )
        if agent_envs.snapshot(env.unwrapped) != before:
            raise Broken(
                f"reset(options={options!r}) changed the running episode",
                "an episode that goes on as if nothing had happened",
                "reset changes state before everything that can fail was tried",
            )


@promise("Without a task id, reset goes through all tasks, each once, before any comes again.")
def check_schedule(subject: Subject) -> None:
    """The order is drawn anew for each round; a task asked for by name takes nobody's turn."""
    env, ids = subject.env, _task_ids(subject)
    if len(ids) > _FEW:
        raise Unchecked(f"the env has more than {_FEW} tasks")
    seen = [env.reset(seed=subject.seed)[1]["task_id"]]
    for number in range(1, 2 * len(ids)):
        if number % 3 == 1:
            env.reset(options={"task_id": ids[0]})
        seen.append(env.reset()[1]["task_id"])
    for begin in (0, len(ids)):
        if sorted(seen[begin : begin + len(ids)]) != sorted(ids):
            raise Broken(
                f"among {len(ids)} resets: {short(seen[begin : begin + len(ids)])}",
                f"each of {len(ids)} tasks once",
                "tasks are drawn with replacement, or a task by name advances the schedule",
            )


@promise("Before the first reset, step and snapshot raise ResetNeeded.")
def check_reset_needed(subject: Subject) -> None:
    """No answer is made up."""
    env = subject.fresh()
    for name, call in (
        ("step", lambda: env.step(NONSENSE)),
        ("snapshot", lambda: agent_envs.snapshot(env)),
    ):
        error = _error_of(call)
        # Wrappers of Gymnasium raise its own error of that name, which ours derives from.
        if error is None or type(error).__name__ != ResetNeeded.__name__:
            raise Broken(
                f"{name} before reset: {_named(error)}",
                "ResetNeeded",
                "the env does not know whether an episode was started",
            )


def _task_ids(subject: Subject) -> tuple[str, ...]:
    ids = getattr(subject.env.unwrapped, "task_ids", ())
    if not ids:
        raise Unchecked("the env has no task_ids")
    return tuple(ids)


def _error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _named(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {short(str(error))}"
