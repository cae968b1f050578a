"""Promises about what envs share: nothing that changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import agent_envs
from agent_envs.testing.report import Broken, promise
from agent_envs.testing.subject import (
    Subject,
    Taken,
    actions_in,
    difference,
    follow,
    same,
    short,
    start_difference,
    take,
)

_UNLIKELY = 20_240_229
"""A seed that no env would give to the global generators."""


@promise("A fork is at the same point, and neither env notices the other.")
def check_fork_independent(subject: Subject) -> None:
    """Branches from a visited state leave the visitor alone."""
    _check_copies(
        subject,
        agent_envs.fork,
        "fork",
        "a mutable attribute is shared: shared_on_copy names it, or __deepcopy__ does not copy it",
    )


@promise("copy.deepcopy(env) keeps the state or raises; it never starts anew silently.")
def check_deepcopy(subject: Subject) -> None:
    """O14: searches that know nothing of snapshots copy the env."""
    subject.point(subject.env, 0)
    try:
        copy.deepcopy(subject.env)
    except Exception:  # a refusal is within the promise
        return
    _check_copies(
        subject, copy.deepcopy, "copy", "__deepcopy__ or __getstate__ leaves the episode out"
    )


def _check_copies(subject: Subject, copied: Any, name: str, cause: str) -> None:
    env = subject.env
    for number in range(subject.walks):
        _, (_, info) = subject.point(env, number)
        before = agent_envs.snapshot(env)
        other = copied(env)
        try:
            there: Any = agent_envs.snapshot(other)
        except agent_envs.ResetNeeded:
            there = None
        if there != before:
            raise Broken(
                f"the {name} is " + ("before its first reset" if there is None else "elsewhere"),
                "the same point, by snapshot",
                cause,
            )
        expected = subject.walk(other, info, number)
        if agent_envs.snapshot(env) != before:
            raise Broken(f"steps of the {name} change the original", "no change", cause)
        there = agent_envs.snapshot(other)
        unequal = difference(expected, follow(env, actions_in(expected)))
        if unequal is not None:
            raise Broken(f"the original, played like its {name}: {unequal[0]}", unequal[1], cause)
        if agent_envs.snapshot(other) != there:
            raise Broken(f"steps of the original change the {name}", "no change", cause)
        other.close()


@promise("Envs stepped in turn give what they give one after the other.")
def check_envs_independent(subject: Subject) -> None:
    """Whatever envs share never changes."""
    alone: list[tuple[Any, list[Taken]]] = []
    for number in (0, 1):
        env = subject.fresh()
        start = env.reset(seed=subject.seed + number)
        alone.append((start, subject.walk(env, start[1], number)))
    pair = [subject.fresh(), subject.fresh()]
    cause = "a class attribute, a module or a cache holds something that changes with an episode"
    for number, env in enumerate(pair):
        unequal = start_difference(alone[number][0], env.reset(seed=subject.seed + number))
        if unequal is not None:
            raise Broken(f"reset of env {number}: {unequal[0]}", unequal[1], cause)
    found: list[list[Taken]] = [[], []]
    for step in range(subject.steps):
        for number, env in enumerate(pair):
            ended = bool(found[number]) and found[number][-1].over
            if step < len(alone[number][1]) and not ended:
                found[number].append(take(env, alone[number][1][step].action))
    for number in (0, 1):
        length = len(found[number])
        unequal = difference(alone[number][1][:length], found[number])
        if unequal is not None:
            raise Broken(f"env {number}, in turn with another: {unequal[0]}", unequal[1], cause)


@promise("The global random state is neither changed nor read.")
def check_global_rng(subject: Subject) -> None:
    """O10, O12: randomness comes from the env's own generator alone."""
    env = subject.env

    def session() -> tuple[Any, list[Taken]]:
        start = env.reset(seed=subject.seed)
        trace = subject.walk(env, start[1])
        if not (trace and trace[-1].over):
            agent_envs.restore(env, agent_envs.snapshot(env))
        env.reset()
        return start, trace

    with _global_state_kept():
        random.seed(_UNLIKELY)
        np.random.seed(_UNLIKELY)
        before = random.getstate(), np.random.get_state()
        session()
        for name, old, new in (
            ("random", before[0], random.getstate()),
            ("numpy.random", before[1], np.random.get_state()),
        ):
            if not same(old, new):
                raise Broken(
                    f"the state of {name} changed",
                    "no change",
                    f"the env draws from {name} or seeds it; use self.np_random",
                )
        found = []
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            found.append(session())
    unequal = start_difference(found[0][0], found[1][0]) or difference(found[0][1], found[1][1])
    if unequal is not None:
        raise Broken(
            f"with another global seed: {unequal[0]}",
            unequal[1],
            "the env copies the global generator's state; use self.np_random",
        )


@contextmanager
def _global_state_kept() -> Iterator[None]:
    ours, theirs = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)


@promise("close() may come twice, or before the first reset, and disturbs no other env.")
def check_close(subject: Subject) -> None:
    """Nothing is closed that others use."""
    never, used, other = subject.fresh(), subject.fresh(), subject.fresh()
    used.reset(seed=subject.seed)
    _, info = other.reset(seed=subject.seed)
    expected = subject.walk(used, info, 0, 3)
    for what, env in (("an env that was never reset", never), ("an env", used)):
        for times in ("once", "twice"):
            try:
                env.close()
            except Exception as error:
                raise Broken(
                    f"closing {what} {times}: {type(error).__name__}: {short(str(error))}",
                    "no error",
                    "close() uses something that it, or a reset that never came, has set to None",
                ) from error
    try:
        found = follow(other, actions_in(expected))
    except Exception as error:
        raise Broken(
            f"after another env was closed: {type(error).__name__}: {short(str(error))}",
            "an env that goes on",
            "close() releases something that envs share",
        ) from error
    unequal = difference(expected, found)
    if unequal is not None:
        raise Broken(
            f"after another env was closed, {unequal[0]}",
            unequal[1],
            "close() releases something that envs share",
        )
