"""Many text environments behind one `gymnasium.vector.VectorEnv`.

Made for group rollouts: every sub-env can be restarted alone on a task of choice, finished ones
are skipped, snapshots reach each of them. See docs/vector.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from agent_envs.core import Info
from agent_envs.errors import InvalidOption, ResetNeeded
from agent_envs.snapshots import Snapshot
from agent_envs.spaces import AnyText
from agent_envs.vector.arguments import actions_of, reset_options, seeds_of, whole
from agent_envs.vector.calls import (
    Description,
    Env,
    Outcome,
    Recipe,
    Request,
    perform,
)
from agent_envs.vector.infos import Infos, gather_infos

Flags: TypeAlias = NDArray[np.bool_]
StepResult: TypeAlias = tuple[Any, NDArray[np.float64], Flags, Flags, Infos]


class TextVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Several text envs that are stepped together; what `make_vec` returns.

    **Observations** are a tuple of the exact texts, **infos** Gymnasium's dict of arrays with
    masks (`gather_infos`).

    **Skipping.** ``step(actions)`` takes one action per sub-env. None leaves a sub-env alone: it
    repeats its last observation, with reward 0 and its flags as they were; its masks in `infos`
    are False, the arrays keep what it said last.

    **The end of an episode.** ``AutoresetMode.DISABLED``, the default: a finished sub-env stays
    where it is; stepping it is `ResetNeeded`, before any sub-env has moved. ``NEXT_STEP`` and
    ``SAME_STEP`` are Gymnasium's.

    **Reset.** ``reset(seed=, options=)`` takes in `options`, apart from what the sub-envs take:

    * ``"reset_mask"``: a bool array; only these sub-envs are reset, the others stay as they are;
    * ``"task_ids"``: one task id, or None for the next of the schedule, per sub-env.

    A seed ``s`` gives sub-env ``i`` the seed ``s + i``; a list gives each its own.

    Where a sub-env raises, the others have done their part, and the error (the first one) names
    its sub-env in a note.
    """

    def __init__(
        self, description: Description, num_envs: int, autoreset_mode: AutoresetMode | str
    ) -> None:
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            known = [mode.value for mode in AutoresetMode]
            raise InvalidOption(
                f"autoreset_mode {autoreset_mode!r} is not one of {known}."
            ) from None
        self.num_envs = num_envs
        self.metadata = {**description.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = description.render_mode
        self.single_observation_space = description.observation_space
        self.single_action_space = description.action_space
        self.observation_space = batch_space(description.observation_space, num_envs)
        self.action_space = batch_space(description.action_space, num_envs)
        self._observations: list[Any] = [None] * num_envs
        self._infos: list[Info | None] = [None] * num_envs
        self._terminated = np.zeros(num_envs, dtype=np.bool_)
        self._truncated = np.zeros(num_envs, dtype=np.bool_)

    @abstractmethod
    def _each(self, requests: Mapping[int, Request]) -> dict[int, Outcome]:
        """Carry out one request per sub-env named."""

    # ------------------------------------------------------------------ Gymnasium

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Infos]:
        """Start episodes in all sub-envs, or in those that ``options["reset_mask"]`` names.

        Raises:
            InvalidOption: seeds or options of the wrong form, before anything is reset.
            ResetNeeded: a mask, while sub-envs outside of it were never reset.
            TaskNotFound: from a sub-env, and whatever else it raises.
        """
        self._demand_open()
        seeds = seeds_of(seed, self.num_envs)
        chosen, options_of = reset_options(options, self.num_envs)
        self._demand_begun(set(range(self.num_envs)) - set(chosen), "reset only a part of")
        outcomes = self._each({i: ("reset", (seeds[i], options_of[i] or None)) for i in chosen})
        for i in chosen:
            if outcomes[i].error is None:
                self._begin(i, *outcomes[i].value)
        self._raise_first(outcomes)
        return self._shown(), self._gathered(chosen)

    def step(self, actions: Iterable[Any]) -> StepResult:
        """Take one action in each sub-env; None skips one.

        Raises:
            ResetNeeded: a sub-env was never reset, or its episode is over and is not restarted
                automatically. No sub-env has moved.
            InvalidOption: not one action per sub-env.
        """
        self._demand_open()
        if not isinstance(self.single_action_space, AnyText):
            actions = iterate(self.action_space, actions)
        listed = actions_of(actions, self.num_envs)
        moving = [i for i, action in enumerate(listed) if action is not None]
        over = self._terminated | self._truncated
        again: set[int] = set()
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            again = {i for i in moving if over[i]}
        self._demand_running(moving, over, again)
        outcomes = self._each(
            {i: ("reset", (None, None)) if i in again else ("step", (listed[i],)) for i in moving}
        )
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        ended: dict[int, Info] = {}
        for i in moving:
            if outcomes[i].error is not None:
                continue
            if i in again:
                self._begin(i, *outcomes[i].value)
                continue
            observation, rewards[i], terminated, truncated, info = outcomes[i].value
            self._observations[i], self._infos[i] = observation, info
            if terminated or truncated:  # only now: what moves was not over before
                self._terminated[i], self._truncated[i] = terminated, truncated
                ended[i] = {"final_obs": observation, "final_info": info}
        self._raise_first(outcomes)
        flags = self._terminated.copy(), self._truncated.copy()
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return self._shown(), rewards, *flags, self._gathered(moving)
        outcomes = self._each(dict.fromkeys(ended, ("reset", (None, None))))
        for i in ended:
            if outcomes[i].error is None:
                self._begin(i, *outcomes[i].value)
        self._raise_first(outcomes)
        return self._shown(), rewards, *flags, self._gathered(moving, ended)

    def render(self) -> tuple[Any, ...] | None:
        """What each sub-env renders."""
        self._demand_open()
        return tuple(self._values("render", [()] * self.num_envs))

    # ------------------------------------------------------------------ single sub-envs

    @property
    def live(self) -> Flags:
        """Which sub-envs have a running episode: those that `step` may move."""
        begun = np.array([info is not None for info in self._infos], dtype=np.bool_)
        return begun & ~(self._terminated | self._truncated)

    def snapshot(self, index: int) -> Snapshot:
        """`agent_envs.snapshot` of one sub-env."""
        snap: Snapshot = self._one(index, "snapshot", ())
        return snap

    def restore(self, index: int, snap: Snapshot) -> tuple[Any, Info]:
        """`agent_envs.restore` of one sub-env; from there it goes on with the others.

        `snap` may come from any env of the same make, here or elsewhere.
        """
        observation, info, terminated, truncated = self._one(index, "restore", (snap,))
        self._begin(index, observation, info)
        self._terminated[index], self._truncated[index] = terminated, truncated
        return observation, info

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The method or attribute `name` of every sub-env, called with the same arguments."""
        self._demand_open()
        return tuple(self._values("call", [(name, args, kwargs)] * self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute `name` of every sub-env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute in every sub-env: a list or tuple gives each its own value."""
        self._demand_open()
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InvalidOption(f"{len(values)} values for {self.num_envs} sub-envs.")
        self._values("set", [(name, value) for value in values])

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generators of the sub-envs; copies of them, where these are in workers."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the sub-envs."""
        return self.get_attr("np_random_seed")

    # ------------------------------------------------------------------ inside

    def _one(self, index: int, name: str, arguments: tuple[Any, ...]) -> Any:
        self._demand_open()
        place = whole(index)
        if place is None or not 0 <= place < self.num_envs:
            raise InvalidOption(
                f"There is no sub-env {index!r}; they are 0 to {self.num_envs - 1}."
            )
        outcomes = self._each({place: (name, arguments)})
        self._raise_first(outcomes)
        return outcomes[place].value

    def _values(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        outcomes = self._each({i: (name, given) for i, given in enumerate(arguments)})
        self._raise_first(outcomes)
        return [outcomes[i].value for i in range(self.num_envs)]

    def _begin(self, index: int, observation: Any, info: Info) -> None:
        self._observations[index], self._infos[index] = observation, info
        self._terminated[index] = self._truncated[index] = False

    def _shown(self) -> Any:
        space = self.single_observation_space
        if isinstance(space, AnyText):
            return tuple(self._observations)
        empty: Any = create_empty_array(space, n=self.num_envs)
        return concatenate(space, self._observations, empty)

    def _gathered(self, fresh: Sequence[int], ended: Mapping[int, Info] | None = None) -> Infos:
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(fresh)] = True
        infos = self._infos
        if ended:
            infos = [
                {**ended[i], **(info or {})} if i in ended else info for i, info in enumerate(infos)
            ]
        return gather_infos(infos, mask)

    def _demand_begun(self, places: Iterable[int], action: str) -> None:
        missing = sorted(i for i in places if self._infos[i] is None)
        if missing:
            raise ResetNeeded(
                f"Cannot {action} the sub-envs: {missing} were never reset. Call reset() for all "
                "of them first."
            )

    def _demand_running(self, moving: list[int], over: Flags, again: set[int]) -> None:
        if None in self._infos:
            self._demand_begun(range(self.num_envs), "step")
        late = [i for i in moving if over[i] and i not in again] if over.any() else []
        if late:
            raise ResetNeeded(
                f"The episodes of the sub-envs {late} are over. Give None as their action to skip "
                "them, or start new ones with reset(options={'reset_mask': ...}). No sub-env has "
                "moved."
            )

    def _raise_first(self, outcomes: Mapping[int, Outcome]) -> None:
        for index in sorted(outcomes):
            error = outcomes[index].error
            if error is not None:
                error.add_note(f"Raised by sub-env {index} of {self.num_envs}.")
                raise error

    def _demand_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("The vector env is closed.")


class SerialVectorEnv(TextVectorEnv):
    """Sub-envs of this process, one after another. They share compiled games."""

    def __init__(self, recipe: Recipe, num_envs: int, autoreset_mode: AutoresetMode | str) -> None:
        envs: list[Env] = []
        try:
            for _ in range(num_envs):
                envs.append(recipe.make())
        except BaseException:
            for env in envs:
                with suppress(Exception):  # what made them fail matters more
                    env.close()
            raise
        self.envs: tuple[Env, ...] = tuple(envs)
        super().__init__(Description.of(self.envs[0]), num_envs, autoreset_mode)

    def _each(self, requests: Mapping[int, Request]) -> dict[int, Outcome]:
        return {i: perform(self.envs[i], request) for i, request in requests.items()}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sub-envs."""
        self._values("close", [()] * self.num_envs)
