"""State of Gymnasium wrappers: what to capture, check and restore for each type.

A snapshot covers the object that `gymnasium.make` returned, so every wrapper in the stack must be
understood. Types are matched exactly, never by inheritance: a subclass may add state. Three kinds
are known:

* wrappers whose state is described here or by `register_wrapper_state`;
* stateless ones: listed here, declared by `register_stateless_wrapper`, or without a single
  instance attribute beyond those of `gymnasium.Wrapper`;
* the rest, refused by name: some because their state is unbounded or hidden (see `REFUSED`).

Wall-clock times are no state: after a restore `RecordEpisodeStatistics` times the episode anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from agent_envs.errors import SnapshotMismatch, UnknownWrapperState

State = tuple[Any, ...]
Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]


def _nothing(wrapper: Any) -> State:
    return ()


def _keep(wrapper: Any, state: State) -> None:
    pass


def _same_result(wrapper: Any, observation: Any, info: dict[str, Any]) -> Any:
    return observation


def _observe(wrapper: Any, observation: Any, info: dict[str, Any]) -> Any:
    return wrapper.observation(observation)


@dataclass(frozen=True, slots=True)
class Handler:
    """How to treat one type of wrapper."""

    capture: Callable[[Any], State] = _nothing
    """The state as nested tuples of plain values."""
    restore: Callable[[Any, State], None] = _keep
    """Put a checked state back."""
    check: Callable[[Any, State], None] | None = None
    """Raise `ValueError` or `TypeError` unless the state fits this wrapper. None: only ()."""
    observe: Callable[[Any, Any, dict[str, Any]], Any] = _same_result
    """The restored observation as this wrapper shows it."""


_STATELESS = Handler()
_STATELESS_OBSERVER = Handler(observe=_observe)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _demand(condition: bool, expected: str) -> None:
    if not condition:
        raise ValueError(f"expected {expected}")


# ------------------------------------------------------------------ Gymnasium's own wrappers


def _check_time_limit(wrapper: Any, state: State) -> None:
    _demand(len(state) == 2 and all(map(_is_count, state)), "elapsed and maximal steps")
    _demand(state[1] == wrapper._max_episode_steps, f"max_episode_steps={state[1]} in this env")


def _capture_time_limit(wrapper: Any) -> State:
    return wrapper._elapsed_steps, wrapper._max_episode_steps


def _restore_time_limit(wrapper: Any, state: State) -> None:
    wrapper._elapsed_steps = state[0]


def _restore_order(wrapper: Any, state: State) -> None:
    wrapper._has_reset = True  # a snapshot exists, so the episode it restores was begun


def _observe_checker(wrapper: Any, observation: Any, info: dict[str, Any]) -> Any:
    # The checker compares the first steps with the data returned before them.
    wrapper.checked_reset = True
    if getattr(wrapper, "checked_data_reuse", True) is False:
        wrapper._previous_data = (observation, dict(info))
    return observation


def _check_flag(wrapper: Any, state: State) -> None:
    _demand(len(state) == 1 and type(state[0]) is bool, "one flag")


def _restore_autoreset(wrapper: Any, state: State) -> None:
    wrapper.autoreset = state[0]


def _capture_statistics(wrapper: Any) -> State:
    return (
        wrapper.episode_count,
        float(wrapper.episode_returns),
        wrapper.episode_lengths,
        wrapper.return_queue.maxlen,
        tuple(map(float, wrapper.time_queue)),
        tuple(map(float, wrapper.return_queue)),
        tuple(wrapper.length_queue),
    )


def _check_statistics(wrapper: Any, state: State) -> None:
    _demand(len(state) == 7, "seven entries")
    count, returns, length, size, *queues = state
    _demand(_is_count(count) and _is_count(length) and type(returns) is float, "counters")
    _demand(size == wrapper.return_queue.maxlen, f"buffer_length={size!r} in this env")
    kinds = (float, float, int)
    for queue, kind in zip(queues, kinds, strict=True):
        good = type(queue) is tuple and len(queue) == min(count, len(queue))
        _demand(good and all(type(item) is kind for item in queue), "queues of numbers")
        _demand(size is None or len(queue) <= size, f"queues of at most {size}")


def _restore_statistics(wrapper: Any, state: State) -> None:
    count, returns, length, size, times, all_returns, lengths = state
    wrapper.episode_count = count
    wrapper.episode_returns = returns
    wrapper.episode_lengths = length
    wrapper.time_queue = deque(times, maxlen=size)
    wrapper.return_queue = deque(all_returns, maxlen=size)
    wrapper.length_queue = deque(lengths, maxlen=size)
    wrapper.episode_start_time = time.perf_counter()


def _capture_sticky(wrapper: Any) -> State:
    # The number of repeats is drawn with NumPy and may be one of its integers.
    repeats = int(wrapper.num_repeats), int(wrapper.repeats_taken)
    action = wrapper.last_action
    if isinstance(action, str):
        action = str.__str__(action)
    elif action is not None:
        action = False  # it may be anything, and a `TextEnv` refuses all of it alike
    return action, bool(wrapper.is_sticky_actions), *repeats


def _check_sticky(wrapper: Any, state: State) -> None:
    good = len(state) == 4 and (state[0] is None or state[0] is False or type(state[0]) is str)
    good = good and type(state[1]) is bool and _is_count(state[2]) and _is_count(state[3])
    _demand(good and state[3] <= state[2], "an action, a flag and two counts")
    _demand(state[2] <= wrapper.repeat_action_duration_range[1], "fewer repeats")
    _demand(not state[1] or state[0] is not None, "an action to repeat")


def _restore_sticky(wrapper: Any, state: State) -> None:
    wrapper.last_action, wrapper.is_sticky_actions = state[:2]
    wrapper.num_repeats, wrapper.repeats_taken = state[2:]


def _capture_stack(wrapper: Any) -> State:
    return tuple(wrapper.obs_queue), wrapper.padding_value


def _check_stack(wrapper: Any, state: State) -> None:
    good = len(state) == 2 and type(state[0]) is tuple and type(state[1]) is str
    _demand(good and all(type(text) is str for text in state[0]), "texts and a padding text")
    _demand(len(state[0]) == wrapper.stack_size, f"{wrapper.stack_size} texts")


def _restore_stack(wrapper: Any, state: State) -> None:
    wrapper.obs_queue = deque(state[0], maxlen=wrapper.stack_size)
    wrapper.padding_value = state[1]


def _observe_stack(wrapper: Any, observation: Any, info: dict[str, Any]) -> Any:
    return tuple(wrapper.obs_queue)


def _capture_time_aware(wrapper: Any) -> State:
    return (wrapper.timesteps,)


def _check_time_aware(wrapper: Any, state: State) -> None:
    _demand(len(state) == 1 and _is_count(state[0]), "one count")


def _restore_time_aware(wrapper: Any, state: State) -> None:
    wrapper.timesteps = state[0]


def _capture_normalizer(wrapper: Any) -> State:
    rms = wrapper.return_rms
    total = float(wrapper.discounted_reward[0])
    return float(rms.mean), float(rms.var), float(rms.count), total, wrapper._update_running_mean


def _check_normalizer(wrapper: Any, state: State) -> None:
    good = len(state) == 5 and all(type(number) is float for number in state[:4])
    _demand(good and type(state[4]) is bool, "four floats and a flag")


def _restore_normalizer(wrapper: Any, state: State) -> None:
    rms = type(wrapper.return_rms)(shape=())
    rms.mean, rms.var, rms.count = np.float64(state[0]), np.float64(state[1]), state[2]
    wrapper.return_rms = rms
    wrapper.discounted_reward = np.array([state[3]])
    wrapper._update_running_mean = state[4]


_HANDLERS: dict[type, Handler] = {
    wrappers.TimeLimit: Handler(_capture_time_limit, _restore_time_limit, _check_time_limit),
    wrappers.OrderEnforcing: Handler(restore=_restore_order),
    wrappers.PassiveEnvChecker: Handler(observe=_observe_checker),
    wrappers.Autoreset: Handler(lambda w: (w.autoreset,), _restore_autoreset, _check_flag),
    wrappers.RecordEpisodeStatistics: Handler(
        _capture_statistics, _restore_statistics, _check_statistics
    ),
    wrappers.StickyAction: Handler(_capture_sticky, _restore_sticky, _check_sticky),
    wrappers.FrameStackObservation: Handler(
        _capture_stack, _restore_stack, _check_stack, _observe_stack
    ),
    wrappers.TimeAwareObservation: Handler(
        _capture_time_aware, _restore_time_aware, _check_time_aware, _observe
    ),
    wrappers.NormalizeReward: Handler(_capture_normalizer, _restore_normalizer, _check_normalizer),
    wrappers.TransformAction: _STATELESS,
    wrappers.TransformReward: _STATELESS,
    wrappers.ClipReward: _STATELESS,
    wrappers.TransformObservation: _STATELESS_OBSERVER,
    wrappers.FilterObservation: _STATELESS_OBSERVER,
    wrappers.FlattenObservation: _STATELESS_OBSERVER,
    wrappers.DtypeObservation: _STATELESS_OBSERVER,
    wrappers.ReshapeObservation: _STATELESS_OBSERVER,
}
if hasattr(wrappers, "RepeatAction"):  # since Gymnasium 1.3
    _HANDLERS[wrappers.RepeatAction] = _STATELESS

REFUSED: dict[type, str] = {
    wrappers.DelayObservation: "the observation it returned last is not kept anywhere",
    wrappers.RenderCollection: "it collects frames without bound",
    wrappers.RecordVideo: "it writes files",
    wrappers.HumanRendering: "it owns a window",
    wrappers.NormalizeObservation: "it is made for arrays, not for text",
    wrappers.MaxAndSkipObservation: "it is made for arrays, not for text",
    wrappers.AtariPreprocessing: "it is made for Atari games",
    wrappers.AddWhiteNoise: "it is made for images and draws from a generator of its own",
    wrappers.ObstructView: "it is made for images and draws from a generator of its own",
}
"""Wrappers of Gymnasium that cannot be part of a snapshot, and why."""


# ------------------------------------------------------------------ registration


def register_wrapper_state(
    cls: type[Wrapper],
    capture: Callable[[Any], State],
    restore: Callable[[Any, State], None],
    *,
    check: Callable[[Any, State], None] | None = None,
    observe: Callable[[Any, Any, dict[str, Any]], Any] | None = None,
) -> None:
    """Describe the state of a wrapper type, so that snapshots can cover it.

    Args:
        cls: the exact type; subclasses need a registration of their own.
        capture: ``capture(wrapper)`` gives the state as nested tuples of int, str, bool, None and
            finite float. It must not share anything mutable with the wrapper.
        restore: ``restore(wrapper, state)`` puts it back.
        check: ``check(wrapper, state)`` raises `ValueError` if the state, which may be hostile,
            does not fit. Without it any tuple is passed to `restore`. Whatever is raised
            there or in `observe`, every wrapper and the env are put back as they were.
        observe: ``observe(wrapper, observation, info)`` gives the restored observation as this
            wrapper shows it. Default: `observation` of an `ObservationWrapper`, else unchanged.
    """
    _demand_wrapper_type(cls)
    if observe is None:
        observe = _default_observe(cls)
    _HANDLERS[cls] = Handler(capture, restore, check or _accept, observe)


def register_stateless_wrapper(cls: type[Wrapper]) -> None:
    """Declare that a wrapper type, exactly `cls`, keeps no state that changes between steps."""
    _demand_wrapper_type(cls)
    _HANDLERS[cls] = Handler(observe=_default_observe(cls))


def _accept(wrapper: Any, state: State) -> None:
    pass


def _default_observe(cls: type) -> Callable[[Any, Any, dict[str, Any]], Any]:
    return _observe if issubclass(cls, gymnasium.ObservationWrapper) else _same_result


def _demand_wrapper_type(cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, gymnasium.Wrapper)):
        raise TypeError(f"Expected a subclass of gymnasium.Wrapper, got {cls!r}.")


# ------------------------------------------------------------------ use


def type_name(wrapper: Wrapper) -> str:
    """How snapshots name the type of a wrapper: ``"module:Class"``."""
    cls = type(wrapper)
    return f"{cls.__module__}:{cls.__qualname__}"


def handler_of(wrapper: Wrapper) -> Handler:
    """The handler for `wrapper`; raises `UnknownWrapperState` by name if there is none."""
    cls = type(wrapper)
    handler = _HANDLERS.get(cls)
    if handler is not None:
        return handler
    if cls not in REFUSED and not _own_attributes(wrapper):
        return _STATELESS_OBSERVER if _default_observe(cls) is _observe else _STATELESS
    name = type_name(wrapper)
    reason = REFUSED.get(cls)
    if reason is None:
        listed = ", ".join(sorted(_own_attributes(wrapper)))
        reason = f"nobody described its attributes ({listed})"
    raise UnknownWrapperState(
        f"A snapshot cannot cover the wrapper {name}: {reason}. Remove the wrapper, describe its "
        "state with agent_envs.register_wrapper_state, or, if none of it changes between steps, "
        "call agent_envs.register_stateless_wrapper."
    )


def check_state(wrapper: Wrapper, handler: Handler, state: State) -> None:
    """Raise `SnapshotMismatch` unless `state` fits `wrapper`. Changes nothing."""
    try:
        if handler.check is not None:
            handler.check(wrapper, state)
        else:
            _demand(state == (), "no state")
    except (ValueError, TypeError, IndexError) as error:
        raise SnapshotMismatch(
            f"Cannot restore the state {_short(state)} of the wrapper {type_name(wrapper)}: "
            f"{error}. The running episode is unchanged."
        ) from error


def _short(state: State) -> str:
    text = repr(state)
    return text if len(text) <= 80 else text[:77] + "..."


def _own_attributes(wrapper: Wrapper) -> set[str]:
    """Names of instance attributes that `gymnasium.Wrapper` itself does not have."""
    slots = {
        name
        for cls in type(wrapper).__mro__[: type(wrapper).__mro__.index(gymnasium.Wrapper)]
        for name in vars(cls).get("__slots__", ())
    }
    return (vars(wrapper).keys() | slots) - _base_attributes()


def _base_attributes() -> frozenset[str]:
    if not _BASE_ATTRIBUTES:
        bare: Wrapper = gymnasium.Wrapper(gymnasium.Env())
        _BASE_ATTRIBUTES.append(frozenset(vars(bare)) | {"_saved_kwargs"})
    return _BASE_ATTRIBUTES[0]


_BASE_ATTRIBUTES: list[frozenset[str]] = []
