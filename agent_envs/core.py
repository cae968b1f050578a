"""`TextEnv`: the base of our envs. Text in, text out, standard Gymnasium.

A subclass brings the world through a few hooks (`agent_envs.hooks.Hooks`); this class owns
everything around it: the step budget, the order of tasks, `info`, the end of an episode, snapshots.
See docs/environments.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from agent_envs.errors import (
    DataError,
    InvalidOption,
    PrivilegedAccess,
    ResetNeeded,
    TaskNotFound,
)
from agent_envs.frozen import FrozenDict
from agent_envs.hooks import SUCCESS, Hooks
from agent_envs.resuming import (
    STEP_LIMIT,
    Expectation,
    check_snapshot,
    copy_rng,
    mismatch,
    rng_to_state,
    set_rng,
)
from agent_envs.schedule import Schedule
from agent_envs.snapshots import FORMAT, Snapshot
from agent_envs.spaces import AnyText

Info = dict[str, Any]

_STATIC_KEYS = frozenset(("task_type", "split", "goal", "action_templates", "provenance"))


class TextEnv(gymnasium.Env[str, str], Hooks):
    """Base of text environments with a step budget, a task schedule and snapshots.

    **Tasks.** ``reset(options={"task_id": t})`` starts task ``t`` and leaves the schedule alone.
    Without it, ``reset`` takes the next task of the schedule: every task once, in an order drawn
    from the env's generator, then all of them again in a new order. ``reset(seed=s)`` starts a
    new schedule that depends on ``s`` alone, never on what came before; as many consecutive seeds
    as there are tasks begin with different ones. An env with a fixed list of tasks
    (`_fixed_order`) takes them as listed until it is given a seed.

    **Steps.** An action is a plain command. Anything the world does not understand, a value that
    is no string included, is answered with a refusal: the world is unchanged,
    ``info["command_valid"]`` is False, and the step is spent.

    **End.** Success is ``terminated``, also on the last allowed step, and so is any other end
    that the world brings (`ends`). Running out of steps is ``truncated``.
    ``info["stop_reason"]`` says ``"success"``, another of `ends`, ``"step_limit"`` or None.
    Stepping on after the end raises `ResetNeeded`.

    **Info.** ``task_id, task_type, split, goal, admissible_actions`` (tuple),
    ``action_templates`` (tuple), ``command_valid`` (True after reset), ``success, score,
    steps_left, stop_reason, provenance``, and ``observation_extras`` if some were asked for.
    Every dict is new and every value immutable. Nothing privileged.

    Args:
        max_steps: steps in an episode, at least 1; None for no limit.
        render_mode: None, or ``"ansi"``: `render` returns the last observation.
        max_observation_length: largest observation, in characters.
        max_action_length: largest action in `action_space`, in characters. Longer ones are
            still answered.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["ansi"],
        "render_fps": 4,
    }
    env_id: ClassVar[str] = ""
    """Registered id, recorded in snapshots; the name of the class unless a subclass sets it."""
    refusal: ClassVar[str] = "Nothing happens."
    """Answer to an action that is no string."""
    shared_on_copy: ClassVar[frozenset[str]] = frozenset(("spec", "_static"))
    """Names of attributes that copies of an env share instead of copying: immutable ones."""
    _fixed_order: bool = False
    """Whether `reset` without a seed goes through the tasks as `_task_ids` lists them."""
    _plays_on: bool = False
    """Whether the world may be acted in after an end that it brought: then the episode goes on."""
    _has_page_info: bool = False
    """Whether `_page_info` is asked."""
    _extras: tuple[str, ...] = ()
    """What ``info["observation_extras"]`` shows; the key is absent if nothing."""

    def __init__(
        self,
        *,
        max_steps: int | None = 50,
        render_mode: str | None = None,
        max_observation_length: int = 1 << 16,
        max_action_length: int = 1 << 12,
    ) -> None:
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise InvalidOption(
                f"max_steps must be None or an int of at least 1, found {max_steps!r}."
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InvalidOption(
                f"render_mode {render_mode!r} is not one of {self.metadata['render_modes']}."
            )
        self.render_mode = render_mode
        self.observation_space: AnyText = AnyText(max_observation_length)
        self.action_space: AnyText = AnyText(max_action_length)
        self._max_steps = max_steps
        self._schedule: Schedule | None = None
        self._static: Info = {}
        self._task_id: str | None = None
        self._observation = ""
        self._taken = 0
        self._command_valid = True
        self._success = False
        self._score = 0.0
        self._stop_reason: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "env_id" not in vars(cls):
            cls.env_id = cls.__name__

    def privileged(self) -> Any:
        """The true state as an immutable value, for oracles; never for wrappers or policies."""
        raise PrivilegedAccess(f"{self.env_id} has no privileged view.")

    # ------------------------------------------------------------------ Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Start an episode; see the class for which task.

        Raises:
            InvalidOption: `options` is no mapping, or has an unknown key.
            TaskNotFound: an unknown task id. The running episode is unchanged.
        """
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise InvalidOption(
                f"reset options are a mapping such as {{'task_id': ...}}, not {options!r}."
            )
        unknown = sorted(str(key) for key in options.keys() - self.reset_options)
        if unknown:
            raise InvalidOption(
                f"Unknown reset options {unknown}; known: {sorted(self.reset_options)}."
            )
        ids = self._task_ids()
        if not ids:
            raise TaskNotFound.among("", (), self.env_id)
        if isinstance(seed, int):
            seed = int(seed)  # True and members of an IntEnum are integers, but no plain values
        fresh = None if seed is None else seeding.np_random(seed)
        schedule = self._next_schedule(fresh, len(ids))
        task_id = self._chosen_task(options)
        scheduled = task_id is None
        if scheduled:
            task_id = ids[schedule.peek()]
        elif not isinstance(task_id, str):
            raise TaskNotFound.among(task_id, ids, self.env_id)
        task_id = _plain(task_id)
        self._load(task_id)
        # Not `_undo_point`: to look at `vars(self)` once makes every later step slower.
        before = self._np_random, self._np_random_seed, self._task_id, self._static
        numbers = None if fresh else _numbers_of(before[0])
        try:
            if fresh is not None:
                self._np_random, self._np_random_seed = fresh
            self._task_id = task_id
            observation = self._begin()
            self._static = self._make_static(task_id)
        except BaseException:
            self._np_random, self._np_random_seed, self._task_id, self._static = before
            if numbers is not None:
                set_rng(before[0], numbers)
            raise
        if scheduled:
            schedule.advance()
        self._schedule = schedule
        self._observation, self._taken = observation, 0
        self._command_valid, self._success, self._score = True, False, 0.0
        self._stop_reason = None
        return self._observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Take one command.

        Raises:
            ResetNeeded: there is no running episode.
        """
        if self._task_id is None or self._stop_reason is not None:
            self._play_on()
        end: str | None
        if isinstance(action, str):
            outcome = self._apply(action if type(action) is str else _plain(action))
            observation, reward, end, self._score, self._command_valid = outcome
        else:
            observation, reward, end = self._refuse(), 0.0, None
            self._command_valid = False
        self._taken += 1
        self._observation = observation
        terminated = truncated = False
        if end is not None:
            if end not in self.ends:
                raise TypeError(
                    f"_apply must end an episode with one of {sorted(self.ends)}, or None, "
                    f"got {end!r}"
                )
            terminated = True
            self._success = end == SUCCESS
            self._stop_reason = end
        elif self._taken == self._max_steps:
            truncated = True
            self._stop_reason = STEP_LIMIT
        return observation, reward, terminated, truncated, self._info()

    def render(self) -> str | None:
        """The last observation if `render_mode` is ``"ansi"``, else None."""
        if self.render_mode is None:
            return None
        if self._task_id is None:
            raise self._no_episode("render")
        return self._observation

    @property
    def max_steps(self) -> int | None:
        """Steps in an episode; None for no limit."""
        return self._max_steps

    @property
    def task_ids(self) -> tuple[str, ...]:
        """All tasks that `reset` can start."""
        return tuple(self._task_ids())

    @property
    def remaining_steps(self) -> int | None:
        """Steps left in the env's own budget; 0 after the end, None for no limit."""
        if self._stop_reason is not None:
            return 0
        return None if self._max_steps is None else self._max_steps - self._taken

    # ------------------------------------------------------------------ inside

    def _next_schedule(
        self, fresh: tuple[np.random.Generator, int] | None, n_tasks: int
    ) -> Schedule:
        if fresh is not None:
            return Schedule.drawn_from(*fresh, n_tasks)
        if self._schedule is not None:
            return self._schedule
        if self._fixed_order:
            return Schedule.as_listed(n_tasks)
        return Schedule.drawn_from(self.np_random, self.np_random_seed, n_tasks)

    def _make_static(self, task_id: str) -> Info:
        static = dict(self._info_static())
        if static.keys() != _STATIC_KEYS:
            raise TypeError(f"_info_static must give {sorted(_STATIC_KEYS)}, got {sorted(static)}")
        static["action_templates"] = tuple(static["action_templates"])
        static["provenance"] = FrozenDict(static["provenance"])
        return _shared((("task_id", task_id), *static.items()))

    def _info(self) -> Info:
        info = self._static.copy()
        limit = self._max_steps
        info["admissible_actions"] = self._admissible()
        info["command_valid"] = self._command_valid
        info["success"] = self._success
        info["score"] = self._score
        info["steps_left"] = None if limit is None else limit - self._taken
        info["stop_reason"] = self._stop_reason
        if self._has_page_info:
            info.update(self._page_info())
        if self._extras:
            info["observation_extras"] = self._observation_extras()
        return info

    def _play_on(self) -> None:
        """Continue after an end that the world brought, where it goes on after one."""
        if self._task_id is None or not self._plays_on or self._taken == self._max_steps:
            raise self._no_episode("step")
        self._stop_reason, self._success = None, False

    def _demand_episode(self, action: str) -> None:
        if self._task_id is None:
            raise self._no_episode(action)

    def _no_episode(self, action: str) -> ResetNeeded:
        if self._task_id is None:
            return ResetNeeded(f"Cannot {action} {self.env_id} before the first reset().")
        return ResetNeeded(
            f"Cannot {action}: the episode of {self._task_id!r} ended ({self._stop_reason}) after "
            f"{self._taken} steps. Call reset()."
        )

    def _capture(self, wrappers: tuple[tuple[str, tuple[Any, ...]], ...] = ()) -> Snapshot:
        """This env's part of a snapshot, together with what was captured of its wrappers."""
        if self._task_id is None or self._schedule is None:
            raise self._no_episode("take a snapshot of")
        return Snapshot(
            FORMAT,
            self.env_id,
            self._task_id,
            (
                self._engine_state(),
                self._observation,
                self._taken,
                self._command_valid,
                self._success,
                self._score,
                self._stop_reason,
                self._schedule.to_state(),
            ),
            None if self._max_steps is None else self._max_steps - self._taken,
            rng_to_state(self.np_random, self.np_random_seed),
            wrappers,
            self._task_revision(self._task_id),
        )

    def _resume(self, snap: Snapshot) -> tuple[str, Info]:
        """Continue from `snap`; raises `SnapshotMismatch` before anything changes."""
        seen = check_snapshot(
            snap,
            Expectation(
                self.env_id,
                self._task_revision,
                self._max_steps,
                self.observation_space.max_length,
                len(self._task_ids()),
                self.ends,
            ),
        )
        try:
            self._set_engine_state(snap.task_id, seen.engine)
        except (TaskNotFound, DataError) as error:
            raise mismatch(snap, f"this env cannot load the task ({error})") from error
        if self._task_id != snap.task_id or not self._static:
            self._task_id = snap.task_id
            self._static = self._make_static(snap.task_id)
        if self._schedule is None or self._schedule.to_state() != seen.schedule.to_state():
            self._schedule = seen.schedule
        self._observation, self._taken = seen.observation, seen.taken
        self._command_valid, self._success = seen.command_valid, seen.success
        self._score, self._stop_reason = seen.score, seen.stop_reason
        self._np_random = set_rng(self._np_random, seen.rng)
        self._np_random_seed = seen.rng[-1]
        return seen.observation, self._info()

    def _undo_point(self) -> Callable[[], None]:
        """A function that puts this env back as it is now. States are values: only the generator
        changes in place."""
        attributes, rng = dict(vars(self)), self._np_random
        numbers = _numbers_of(rng)

        def undo() -> None:
            vars(self).clear()
            vars(self).update(attributes)
            if numbers is not None:
                set_rng(rng, numbers)

        return undo

    def __deepcopy__(self, memo: dict[int, Any]) -> TextEnv:
        """An independent env in the same state, sharing immutable tables."""
        new = object.__new__(type(self))
        memo[id(self)] = new
        for name, value in vars(self).items():
            if name == "_np_random" and value is not None:
                value = copy_rng(value)
            elif name not in self.shared_on_copy:
                value = copy.deepcopy(value, memo)
            new.__dict__[name] = value
        return new


@lru_cache(maxsize=1024)  # envs that play the same task share it; nothing changes it
def _shared(items: tuple[tuple[str, Any], ...]) -> Info:
    return dict(items)


def _numbers_of(rng: np.random.Generator | None) -> Any:
    """The state of a generator for `set_rng`; None if there is none, or one of another kind."""
    if rng is None or type(rng.bit_generator) is not np.random.PCG64:
        return None
    return rng_to_state(rng, 0)[1:]


def _plain(text: str) -> str:
    """The characters of a string of any subclass (say NumPy's, or with a `__str__` of its own)."""
    return str.__str__(text)
