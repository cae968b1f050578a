"""Snapshots of wrapped envs: take, restore, fork, and the steps that are left.

All four work on what `gymnasium.make` returns, on any stack of known wrappers around a `TextEnv`
(see `agent_envs.wrapper_state`), and on the bare env.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium
from gymnasium import wrappers

from agent_envs.core import Info, TextEnv
from agent_envs.errors import SnapshotError, SnapshotMismatch
from agent_envs.resuming import check_maker
from agent_envs.snapshots import Snapshot
from agent_envs.wrapper_state import Handler, Wrapper, check_state, handler_of, type_name

EnvT = TypeVar("EnvT", bound=gymnasium.Env[Any, Any])


def snapshot(env: gymnasium.Env[Any, Any]) -> Snapshot:
    """The point that `env` is at, wrappers included, as an immutable value.

    Not covered: the generators behind ``action_space.sample()`` and wall-clock times.

    Raises:
        ResetNeeded: `env` was never reset.
        UnknownWrapperState: a wrapper keeps state that nobody described; it is named.
        SnapshotError: the innermost env is no `TextEnv`.
    """
    stack, base = _unwind(env)
    base._demand_episode("take a snapshot of")
    return base._capture(tuple([(type_name(w), h.capture(w)) for w, h in stack]))


def restore(env: gymnasium.Env[Any, Any], snap: Snapshot) -> tuple[Any, Info]:
    """Put `env` at the point of `snap`: from there it goes on exactly as the original did.

    `env` needs the same stack of wrappers with the same limits, and the same data for the task;
    it may never have been reset. Everything is checked before anything changes.

    Returns:
        The last observation, as the wrappers show it, and the env's own `info` at that point.

    Raises:
        SnapshotMismatch: the snapshot does not belong to this env; the episode goes on as if
            nothing had happened.
        UnknownWrapperState: as for `snapshot`.
    """
    stack, base = _unwind(env)
    if not isinstance(snap, Snapshot):
        raise TypeError(f"Expected a Snapshot, got {type(snap).__name__}; use Snapshot.from_bytes.")
    check_maker(snap, base.env_id)  # first: other envs have other wrappers, too
    _check_stack(stack, snap)
    undo: list[Callable[[], None]] = [base._undo_point()]
    try:
        for (wrapper, handler), (_, state) in zip(stack, snap.wrappers, strict=True):
            undo.append(_undo_point(wrapper, handler))
            handler.restore(wrapper, state)
        observation, info = base._resume(snap)
        shown: Any = observation
        for wrapper, handler in reversed(stack):
            shown = handler.observe(wrapper, shown, info)
    except BaseException as error:
        for back in reversed(undo):
            back()
        if isinstance(error, SnapshotError) or not isinstance(error, Exception):
            raise
        raise SnapshotMismatch(
            f"Cannot restore task {snap.task_id!r}: a wrapper of {env} failed with "
            f"{type(error).__name__}: {error}. The running episode is unchanged."
        ) from error
    return shown, info


def _undo_point(wrapper: Wrapper, handler: Handler) -> Callable[[], None]:
    """A function that puts `wrapper` back as it is now."""
    attributes = dict(vars(wrapper))
    try:
        state = handler.capture(wrapper)
    except Exception:  # wrappers that make their state in `reset` have none before it
        state = None

    def undo() -> None:
        vars(wrapper).clear()
        vars(wrapper).update(attributes)
        if state is not None:
            handler.restore(wrapper, state)  # what was changed inside of containers
            vars(wrapper).update(attributes)

    return undo


def fork(env: EnvT) -> EnvT:
    """A second, independent env at the same point, with the same wrappers.

    Games and other immutable tables are shared. Whatever happens in one env changes nothing in
    the other.

    Raises:
        ResetNeeded, UnknownWrapperState, SnapshotError: as for `snapshot`.
    """
    _, base = _unwind(env)
    base._demand_episode("fork")
    return copy.deepcopy(env)


def remaining_steps(env: gymnasium.Env[Any, Any]) -> int | None:
    """How many more steps `env` allows: the env's own budget and every `TimeLimit` around it.

    0 after the end of an episode; None if nothing limits it. Counted in steps of `env` itself,
    also where a `RepeatAction` inside makes several of one.
    """
    layers, base = layers_of(env)
    left = base.remaining_steps
    for wrapper in reversed(layers):
        if isinstance(wrapper, wrappers.TimeLimit):
            own = wrapper._max_episode_steps - (wrapper._elapsed_steps or 0)
            left = max(own, 0) if left is None else min(max(own, 0), left)
        elif left is not None and type(wrapper).__name__ == "RepeatAction":
            left = -(-left // wrapper.num_repeats)  # type: ignore[attr-defined]
    return left


def _unwind(env: gymnasium.Env[Any, Any]) -> tuple[list[tuple[Wrapper, Handler]], TextEnv]:
    layers, base = layers_of(env)
    return [(wrapper, handler_of(wrapper)) for wrapper in layers], base


def layers_of(env: gymnasium.Env[Any, Any]) -> tuple[list[Wrapper], TextEnv]:
    """Wrappers of `env`, outermost first, and the env inside."""
    layers: list[Wrapper] = []
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        layers.append(inner)
        inner = inner.env
    if not isinstance(inner, TextEnv):
        raise SnapshotError(
            f"Expected an agent_envs.TextEnv inside the wrappers, found {type(inner).__name__}. "
            "A vector env is handled one sub-env at a time."
        )
    return layers, inner


def _check_stack(stack: list[tuple[Wrapper, Handler]], snap: Snapshot) -> None:
    try:
        expected = [name for name, _ in snap.wrappers]
    except (TypeError, ValueError):
        expected = [repr(snap.wrappers)]
    found = [type_name(wrapper) for wrapper, _ in stack]
    if expected != found:
        raise SnapshotMismatch(
            f"Cannot restore task {snap.task_id!r}: the snapshot was taken under the wrappers "
            f"{expected}, this env has {found} (outermost first). Build the env in the same way. "
            "The running episode is unchanged."
        )
    for (wrapper, handler), (_, state) in zip(stack, snap.wrappers, strict=True):
        check_state(wrapper, handler, state)
