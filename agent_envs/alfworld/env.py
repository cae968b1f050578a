"""``SeroALFWorld-v0``: the ALFWorld text game as a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from agent_envs.alfworld.backends import check_state, engine_named
from agent_envs.alfworld.games import GameSet, load_game_set, parse_task_types
from agent_envs.alfworld.model import PrivilegedView, TaskType
from agent_envs.alfworld.naming import KEY_LIMIT
from agent_envs.alfworld.rules_view import RulesView, rules_view
from agent_envs.alfworld.text import REFUSAL
from agent_envs.alfworld.variants import (
    GOAL_SOURCES,
    PLAIN,
    Variant,
    from_plain,
    human_goal,
    to_plain,
)
from agent_envs.core import TextEnv
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    PrivilegedAccess,
    ResetNeeded,
    SnapshotMismatch,
    TaskNotFound,
)
from agent_envs.frozen import FrozenDict
from agent_envs.hooks import SUCCESS
from agent_envs.schedule import checked_order
from agent_envs.version import engine_version

__all__ = ["ALFWorldEnv", "check_state", "engine_version"]

REWARD_VERSION = "alfworld-won-v1"
"""1 on the step that wins, else 0: the original's score."""

EXTRAS = ("inventory", "location")
TRAIN = "train"


class ALFWorldEnv(TextEnv):
    """ALFWorld's household tasks (Shridhar et al. 2021, arXiv:2010.03768).

    Observations, admissible commands and rewards are those of the original engine, step for
    step. The first observation names the task; ``info["goal"]`` repeats its sentence. All legal
    commands can be listed, so ``info["action_templates"]`` is empty. The admissible commands are
    sorted.

    Args:
        data: games: a `GameSet`, or the path of a folder, archive or game file. Without it
            ``$SERO_ALFWORLD_DATA``, then ``$ALFWORLD_DATA``, then generated households.
        split: which split to play; None for all games.
        task_types: which of the six task types to play; None for all.
        max_steps: steps in an episode; 50 is the field's usual budget, None is no limit.
        render_mode: None or ``"ansi"``.
        task_ids: play these tasks, in this order until a seed is given; their ids name their
            splits, so `split` is not asked, and `task_types` must be None.
        extras: any of ``"inventory"`` and ``"location"``: a `FrozenDict` under
            ``info["observation_extras"]`` then has the names of what the agent holds and of the
            receptacles where it stands (tuples, empty for nothing). Observations stay the same.
        domain_randomization: number the things of training games anew at each reset, drawn from
            the env's generator. Other splits keep their numbers, as in the original.
        goal_source: ``"template"``: the game's own task sentence. ``"human"``: what a person
            wrote for the same task, drawn from the env's generator at each reset.
        goal_index: which human-annotated sentence, counted from 0, instead of drawing one.
        engine: ``"native"``, or ``"textworld"``: the original packages (extra ``reference``),
            thousands of times slower, also for games whose rules the native engine does not know.

    Raises:
        MissingData: no data there, or no game in this split and of these types.
        InvalidOption: an option that is not understood.
        TaskNotFound: an id in `task_ids` that is not in the data; says why if it was left out.
    """

    env_id: ClassVar[str] = "SeroALFWorld-v0"
    refusal: ClassVar[str] = REFUSAL
    shared_on_copy: ClassVar[frozenset[str]] = TextEnv.shared_on_copy | {
        "_games",
        "_ids",
        "_members",
        "_engine",
        "_game",
        "_state",
        "_variant",
    }

    def __init__(
        self,
        data: GameSet | str | os.PathLike[str] | None = None,
        split: str | None = TRAIN,
        task_types: Iterable[TaskType | str] | None = None,
        max_steps: int | None = 50,
        render_mode: str | None = None,
        *,
        task_ids: Iterable[str] | None = None,
        extras: Iterable[str] = (),
        domain_randomization: bool = False,
        goal_source: str = "template",
        goal_index: int | None = None,
        engine: str = "native",
    ) -> None:
        super().__init__(max_steps=max_steps, render_mode=render_mode)
        if split is not None and not isinstance(split, str):
            raise InvalidOption(f"split is the name of a split or None, found {split!r}.")
        types = None if task_types is None else parse_task_types(task_types)
        self._engine = engine_named(engine)
        self._extras = _checked_extras(extras)
        self._variation = _checked_variation(domain_randomization, goal_source, goal_index)
        self._fixed_order = task_ids is not None
        if task_ids is not None and types is not None:
            raise InvalidOption("task_ids and task_types exclude each other: give one of them.")
        listed = None if task_ids is None else checked_order(task_ids)
        self._games = load_game_set(data)
        self._ids, self._members = _selected(self._games, split, types, listed)
        self._game: Any = None
        self._state: Any = None
        self._variant = PLAIN

    @property
    def games(self) -> GameSet:
        """The games behind this env."""
        return self._games

    @property
    def data_revision(self) -> str:
        """The manifest hash of the games."""
        return self._games.manifest_hash

    def privileged(self) -> PrivilegedView | RulesView:
        """Rules, true state and budget, for oracles.

        A `RulesView` for a game that only the original engine can play: its own PDDL and facts.

        Raises:
            ResetNeeded: before the first reset.
        """
        if self._game is None:
            raise ResetNeeded("There is no privileged view before the first reset().")
        try:
            known = self._engine.view(self._game, self._state)
        except PrivilegedAccess:  # only the original engine knows the rules
            return rules_view(self._game, self._state, self.remaining_steps)
        return PrivilegedView(*known, self.remaining_steps)

    def close(self) -> None:
        """End the episode and let go of the game; `reset` starts another."""
        self._game = self._state = self._task_id = self._stop_reason = None
        super().close()

    # ------------------------------------------------------------------ hooks of TextEnv

    def _task_ids(self) -> tuple[str, ...]:
        return self._ids

    def _task_revision(self, task_id: str) -> str:
        if self._game is not None and self._task_id == task_id:
            return self._engine.describe(self._game)[2]
        self._check_id(task_id)
        return self._engine.revision(self._games, task_id)

    def _load(self, task_id: str) -> None:
        self._check_id(task_id)

    def _begin(self) -> str:
        assert self._task_id is not None
        variant = self._drawn_variant(self._task_id)
        game = self._engine.load(self._games, self._task_id, variant)
        state, text = self._engine.start(game)
        self._game, self._state, self._variant = game, state, variant
        return text

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        engine, game = self._engine, self._game
        state, text, accepted = engine.step(game, self._state, command)
        self._state = state
        if engine.won(game, state):
            return text, 1.0, SUCCESS, 1.0, accepted
        return text, 0.0, None, 0.0, accepted

    def _admissible(self) -> tuple[str, ...]:
        return self._engine.admissible(self._game, self._state)

    def _engine_state(self) -> tuple[Any, ...]:
        return to_plain(self._variant, self._engine.to_plain(self._game, self._state))

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        variant, inner = from_plain(state)
        game = self._game
        if game is None or self._task_id != task_id or self._variant != variant:
            self._check_id(task_id)
            if variant.goal is not None:
                self._check_sentence(task_id, variant)
            game = self._engine.load(self._games, task_id, variant)
        reached = self._engine.from_plain(game, inner)
        if self._variant != variant:
            self._static = {}
        self._game, self._state, self._variant = game, reached, variant

    def _info_static(self) -> Mapping[str, Any]:
        assert self._task_id is not None
        ref = self._games.meta(self._task_id)
        goal, generation, revision = self._engine.describe(self._game)
        naming, human, _ = self._variant
        return {
            "task_type": str(ref.task_type),
            "split": ref.split,
            "goal": goal,
            "action_templates": (),
            "provenance": {
                "engine": self._engine.name,
                "engine_version": self._engine.version(),
                "generation": generation,
                "data_revision": revision,
                "manifest_hash": self._games.manifest_hash,
                "reward_version": REWARD_VERSION,
                "goal_source": "template" if human is None else f"human:{human}",
                "naming": "file" if naming is None else f"shuffled:{naming}",
            },
        }

    def _observation_extras(self) -> FrozenDict:
        held, here = self._engine.around(self._game, self._state)
        known = {"inventory": held, "location": here}
        return FrozenDict({name: known[name] for name in self._extras})

    # ------------------------------------------------------------------ inside

    def _drawn_variant(self, task_id: str) -> Variant:
        renumber, human, index = self._variation
        naming = goal = None
        sentence = ""
        if renumber and self._games.meta(task_id).split == TRAIN:
            naming = int(self.np_random.integers(KEY_LIMIT))
        if human:
            sentences = self._games.annotations(task_id)
            choices = human_goal(sentences, index, task_id)
            goal = choices[0]
            if index is None:
                goal = choices[int(self.np_random.integers(len(choices)))]
            sentence = sentences[goal]
        if naming is None and goal is None:
            return PLAIN
        return Variant(naming, goal, sentence)

    def _check_id(self, task_id: str) -> None:
        if task_id not in self._members:
            # A game that the set does not have is the set's to explain; of those it has, this
            # env plays a selection.
            self._games.meta(task_id)
            raise _other_selection(task_id, self._ids)

    def _check_sentence(self, task_id: str, variant: Variant) -> None:
        sentences = self._games.annotations(task_id)
        assert variant.goal is not None
        if variant.sentence not in sentences[variant.goal : variant.goal + 1]:
            raise SnapshotMismatch(
                f"The task sentence {variant.sentence!r} of the snapshot is not annotation "
                f"{variant.goal} of game {task_id!r} here."
            )


_selections: WeakKeyDictionary[GameSet, dict[Any, tuple[tuple[str, ...], frozenset[str]]]]
_selections = WeakKeyDictionary()  # shared: of 3,553 ids a list and a set take 160 kB


def _selected(
    games: GameSet,
    split: str | None,
    types: frozenset[TaskType] | None,
    listed: tuple[str, ...] | None,
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The ids that an env plays: in order, and for looking up."""
    key = (split, types) if listed is None else listed
    known = _selections.setdefault(games, {})
    if key not in known:
        if len(known) >= 64:
            known.clear()
        if listed is None:
            ids = games.task_ids(split, types)
        else:
            ids = tuple(games.meta(task_id).task_id for task_id in listed)
        if not ids:
            raise _no_games(games, split, types)
        known[key] = ids, frozenset(ids)
    return known[key]


def _no_games(games: GameSet, split: str | None, types: frozenset[TaskType] | None) -> MissingData:
    wanted = "" if types is None else f" of task types {sorted(types)}"
    return MissingData(
        f"No games{wanted} in split {split!r} of {games.source!r}. It has "
        f"{len(games)} games in the splits {list(games.splits)}; left out: "
        f"{games.skip_counts() or 'none'}. Choose one of these splits, or split=None for all."
    )


def _other_selection(task_id: str, ids: tuple[str, ...]) -> TaskNotFound:
    near = TaskNotFound.among(task_id, ids)
    return TaskNotFound(
        f"Task {task_id!r} exists, but not in this env's split, task types or task_ids. {near}"
    )


def _checked_extras(extras: Iterable[str]) -> tuple[str, ...]:
    if isinstance(extras, str) or not isinstance(extras, Iterable):
        raise InvalidOption(f"extras must be a sequence out of {EXTRAS}, found {extras!r}.")
    wanted = tuple(extras)
    unknown = [name for name in wanted if name not in EXTRAS]
    if unknown:
        raise InvalidOption(f"extras must be out of {EXTRAS}, found {unknown[0]!r}.")
    return tuple(name for name in EXTRAS if name in wanted)


def _checked_variation(
    domain_randomization: bool, goal_source: str, goal_index: int | None
) -> tuple[bool, bool, int | None]:
    if type(domain_randomization) is not bool:
        raise InvalidOption(
            f"domain_randomization must be True or False, found {domain_randomization!r}."
        )
    if not isinstance(goal_source, str) or goal_source not in GOAL_SOURCES:
        raise InvalidOption(f"goal_source must be one of {GOAL_SOURCES}, found {goal_source!r}.")
    human = goal_source == "human"
    if goal_index is not None and (type(goal_index) is not int or goal_index < 0 or not human):
        raise InvalidOption(
            "goal_index must be None, or an int of at least 0 together with goal_source='human'; "
            f"found {goal_index!r} with goal_source={goal_source!r}."
        )
    return domain_randomization, human, goal_index
