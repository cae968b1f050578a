"""``SeroWebShop-v0``: the WebShop text game as a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, cast

from agent_envs.core import Info, TextEnv
from agent_envs.errors import (
    InvalidOption,
    ResetNeeded,
    SnapshotMismatch,
)
from agent_envs.frozen import FrozenDict
from agent_envs.hooks import SUCCESS
from agent_envs.schedule import checked_order
from agent_envs.snapshots import Snapshot
from agent_envs.version import engine_version
from agent_envs.webshop import html_pages
from agent_envs.webshop.actions import ACTION_LIMIT, SEARCH_TEMPLATE
from agent_envs.webshop.catalogue.goals import Kind
from agent_envs.webshop.catalogue.splits import SplitBy
from agent_envs.webshop.engine import DONE, INDEX, START, Engine, Rules, engine_of
from agent_envs.webshop.history import NO_HISTORY, Keeps, add, check_history
from agent_envs.webshop.model import Goal, PrivilegedShop, Purchase, RewardInfo, Session
from agent_envs.webshop.options import (
    GOAL_SOURCES,
    OBSERVATION_MODES,
    check_choice,
    check_counts,
    check_flags,
    open_shop,
)
from agent_envs.webshop.pages import NOTHING, View
from agent_envs.webshop.played_goals import PlayedGoals, given_goal, is_given
from agent_envs.webshop.reward import REWARD_VERSION
from agent_envs.webshop.shop import GoalSet, Shop, goal_from_dict
from agent_envs.webshop.states import KEY_LIMIT, checked_goal, goal_id, restored_session
from agent_envs.webshop.urls import session_name

PURCHASE = "purchase"
"""The stop reason of an episode that ended with a purchase worth less than 1."""
TRAIN = "train"

_PAGE_LIMIT = 1 << 18  # characters of a page; the longest of the 1,000 products takes 16,000
_HTML_LIMIT = 1 << 22

_PARTS = tuple(field.name for field in fields(RewardInfo))
_SEARCHABLE = {"action_templates": (SEARCH_TEMPLATE,), "reward_info": None}
_OTHER = {"action_templates": (), "reward_info": None}


class WebShopEnv(TextEnv):
    """Shopping in WebShop (Yao et al. 2022, arXiv:2207.01206).

    Observations, clickable texts and rewards are those of the original, step for step. An action
    is ``search[words]``, on any page, or ``click[text]`` with one of the texts on the page.
    ``info["admissible_actions"]`` has a click on every clickable text, in the original's order;
    ``info["action_templates"]`` has ``search[<query>]`` where the page has a search bar. The
    reward is 0 until the purchase, which ends the episode and is worth between 0 and 1; only 1
    is a success. ``info["reward_info"]`` then has the parts of the reward, else None.

    A goal can be given with ``reset(options={"goal": ...})``: a `Goal`, or a mapping with the
    original's keys. Its task id is a digest of it.

    Args:
        data: a `Shop`, a path (see `load_shop`), or ``"generated"``. Without it
            ``$SERO_WEBSHOP_DATA``, else a generated shop.
        split: which split of the goals to play; None for all goals.
        max_steps: steps in an episode; 15 is the field's usual budget, None is no limit.
        render_mode: None or ``"ansi"``.
        goal_source: ``"synthetic"`` or ``"human"`` goals.
        split_by: ``"goal"``: the published splits. ``"product"``: no product is wanted in two
            splits.
        observation_mode: ``"text"``, ``"text_rich"`` (what is clickable or was clicked is marked),
            ``"html"`` (extra ``site``) or ``"url"``.
        num_prev_obs: as many pages before stand in front of the observation, oldest first.
        num_prev_actions: as many actions before, likewise.
        show_attributes: whether item pages lead to a page of attributes.
        compat: bring back the original's faults that no published number rests on
            (docs/webshop.md).
        nouns: which nouns of titles the reward compares: ``"table"``, or ``"spacy"`` (extra
            ``spacy``), the original's.
        price_seed: of prices and price limits, which the original draws anew at each start. A
            `Shop` has its own.
        task_ids: play these tasks, in this order until a seed is given; `split` is not asked.

    Raises:
        MissingData: no data there, or no goal in this split.
        InvalidOption: an option that is not understood.
        TaskNotFound: an id in `task_ids` that is not in the data.
        MissingExtra: an option that needs a package which is not installed.
    """

    env_id: ClassVar[str] = "SeroWebShop-v0"
    ends: ClassVar[frozenset[str]] = frozenset((SUCCESS, PURCHASE))
    reset_options: ClassVar[frozenset[str]] = frozenset(("task_id", "goal"))
    shared_on_copy: ClassVar[frozenset[str]] = TextEnv.shared_on_copy | {
        "_played",
        "_engine",
        "_goal",
        "_given",
        "_session",
        "_view",
        "_bought",
    }
    _has_page_info = True

    def __init__(
        self,
        data: Shop | str | os.PathLike[str] | None = None,
        split: str | None = TRAIN,
        max_steps: int | None = 15,
        render_mode: str | None = None,
        *,
        goal_source: str = "synthetic",
        split_by: str = "goal",
        observation_mode: str = "text",
        num_prev_obs: int = 0,
        num_prev_actions: int = 0,
        show_attributes: bool = False,
        compat: bool = False,
        nouns: str = "table",
        price_seed: int = 0,
        task_ids: Iterable[str] | None = None,
    ) -> None:
        check_choice("goal_source", goal_source, GOAL_SOURCES)
        check_choice("observation_mode", observation_mode, OBSERVATION_MODES)
        check_flags(show_attributes=show_attributes, compat=compat)
        check_counts(num_prev_obs=num_prev_obs, num_prev_actions=num_prev_actions)
        page_limit = _HTML_LIMIT if observation_mode == "html" else _PAGE_LIMIT
        history = num_prev_obs * page_limit + num_prev_actions * ACTION_LIMIT
        super().__init__(
            max_steps=max_steps,
            render_mode=render_mode,
            max_observation_length=page_limit + history,
            max_action_length=ACTION_LIMIT,
        )
        listed = None if task_ids is None else checked_order(task_ids)
        shop = open_shop(data, price_seed)
        layout = observation_mode if observation_mode == "text_rich" else "text"
        self._engine: Engine = engine_of(shop, Rules(layout, show_attributes, compat, nouns))
        goals = GoalSet(shop, cast(Kind, goal_source), split_by=cast(SplitBy, split_by))
        self._played = PlayedGoals(goals, split, listed)
        self._fixed_order = listed is not None
        self._plays_on = compat
        self._is_drawn = False
        self._mode = observation_mode
        self._keeps = Keeps(num_prev_obs, num_prev_actions)
        self._manner = (
            f"observation_mode={observation_mode} num_prev_obs={num_prev_obs} "
            f"num_prev_actions={num_prev_actions} show_attributes={show_attributes} "
            f"compat={compat} nouns={nouns}"
        )
        self._given: tuple[str, Goal] | None = None
        self._goal: Goal | None = None
        self._name = self._first = self._heading = ""
        self._session: Session = START
        self._view: View = NOTHING
        self._bought: Purchase | None = None
        self._text: str | None = None
        self._seen: tuple[str, ...] = ()
        self._said: tuple[str, ...] = ()

    @property
    def shop(self) -> Shop:
        """The shop behind this env."""
        return self._engine.shop

    @property
    def goals(self) -> GoalSet:
        """The goals behind this env."""
        return self._played.goals

    @property
    def engine(self) -> Engine:
        """The rules by which this env plays."""
        return self._engine

    @property
    def data_revision(self) -> str:
        """Revision of products, prices and goals."""
        return self._engine.shop.revision

    def privileged(self) -> PrivilegedShop:
        """Shop, goal, session and budget, for oracles.

        Raises:
            ResetNeeded: before the first reset.
        """
        if self._goal is None:
            raise ResetNeeded("There is no privileged view before the first reset().")
        engine, left = self._engine, self.remaining_steps
        return PrivilegedShop(engine.shop, self._goal, self._session, left, engine.rules)

    def close(self) -> None:
        """End the episode; `reset` starts another."""
        self._goal = self._task_id = self._stop_reason = None
        self._session, self._view, self._bought = START, NOTHING, None
        super().close()

    # ------------------------------------------------------------------ hooks of TextEnv

    def _task_ids(self) -> Sequence[str]:
        return self._played.ids

    def _chosen_task(self, options: Mapping[str, Any]) -> Any:
        task_id, goal = options.get("task_id"), options.get("goal")
        # The original draws goals by weight where none is asked for.
        self._is_drawn = self._plays_on and not self._fixed_order and task_id is goal is None
        if goal is None:
            return task_id
        if task_id is not None:
            raise InvalidOption("task_id and goal exclude each other: give one of them.")
        if not isinstance(goal, Goal):
            goal = goal_from_dict(goal)
        try:
            goal = checked_goal(goal)
        except ValueError as error:
            raise InvalidOption(f"This goal cannot be played: {error}.") from error
        self._given = goal_id(goal), goal
        return self._given[0]

    def _load(self, task_id: str) -> None:
        if self._given is None or self._given[0] != task_id:
            self._played.check(task_id)

    def _begin(self) -> str:
        if self._is_drawn:
            self._task_id = self._played.drawn(float(self.np_random.random()))
        assert self._task_id is not None
        if self._given is not None and self._given[0] == self._task_id:
            self._play(self._given[1], self._task_id)
        else:
            self._play(self._played.goals.goal(self._task_id), self._task_id)
        self._session, self._view, self._bought = START, NOTHING, None
        self._text = text = self._page_text()
        self._seen, self._said = (text,) if self._keeps.pages else (), ()
        return text

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        engine = self._engine
        session = engine.advance(self._session, self._view, command, self._name, self._draw)
        bought = self._bought
        if session is None:
            score = 0.0 if bought is None else bought.reward
            return self._shown(command), 0.0, None, score, False
        assert self._goal is not None
        self._session, self._text, self._bought = session, None, None
        self._view = engine.view(session)
        if session.page != DONE:
            return self._shown(command), 0.0, None, 0.0, True
        self._bought = bought = engine.purchase(self._goal, session)
        end = SUCCESS if bought.reward == 1.0 else PURCHASE
        return self._shown(command), bought.reward, end, bought.reward, True

    def _refuse(self) -> str:
        return self._observation

    def _admissible(self) -> tuple[str, ...]:
        return self._view.commands

    def _page_info(self) -> Mapping[str, Any]:
        if self._bought is not None:
            info = self._bought.info
            parts = {name: part for name in _PARTS if (part := getattr(info, name)) is not None}
            return {"action_templates": (), "reward_info": FrozenDict(parts)}
        return _SEARCHABLE if self._session.page == INDEX else _OTHER

    def _engine_state(self) -> tuple[Any, ...]:
        given = self._goal if is_given(self._task_id) else None
        return self._manner, given, self._session, self._seen, self._said

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if len(state) != 5:
            raise SnapshotMismatch(f"Expected 5 parts of a state, found {len(state)}.")
        manner, given, session, seen, said = state
        if manner != self._manner or type(manner) is not str:
            raise SnapshotMismatch(
                f"The snapshot was made with {manner!r:.200}, this env has {self._manner!r}. Use "
                "the same options. The running episode is unchanged."
            )
        goal = self._restored_goal(task_id, given)
        session = restored_session(session, self._engine)
        check_history(self._keeps, seen, said, self.observation_space.max_length)
        view, bought = self._engine.view(session), None
        if session.page == DONE:
            bought = self._engine.purchase(goal, session)
        if goal is not self._goal or task_id != self._task_id:
            self._play(goal, task_id)
            if given is not None:
                self._given, self._static = (task_id, goal), {}
        self._session, self._view, self._bought, self._text = session, view, bought, None
        self._seen, self._said = seen, said

    def _resume(self, snap: Snapshot) -> tuple[str, Info]:
        parts = snap.state
        if not self._plays_on and type(parts) is tuple and len(parts) == 8:
            inner = parts[0]
            session = inner[2] if isinstance(inner, tuple) and len(inner) == 5 else ()
            is_bought = isinstance(session, tuple) and session[:1] == (DONE,)
            if is_bought != (parts[6] in (SUCCESS, PURCHASE)):
                raise SnapshotMismatch(
                    f"Cannot restore task {snap.task_id!r}: only an episode that ended with a "
                    f"purchase is on the last page, this one has the stop reason {parts[6]!r}. "
                    "The running episode is unchanged."
                )
        return super()._resume(snap)

    def _task_revision(self, task_id: str) -> str:
        if not is_given(task_id):
            self._played.check(task_id)
        return self.data_revision

    def _make_static(self, task_id: str) -> Info:
        # The goal that was drawn may be another than the schedule's.
        return super()._make_static(self._task_id or task_id)

    def _info_static(self) -> Mapping[str, Any]:
        assert self._task_id is not None
        assert self._goal is not None
        shop, goals, rules = self._engine.shop, self._played.goals, self._engine.rules
        if is_given(self._task_id):
            has_groups = bool(self._goal.options) and not isinstance(self._goal.options[0], str)
            kind, split = "synthetic" if has_groups else "human", "given"
        else:
            ref = goals.meta(self._task_id)
            kind, split = str(ref.task_type), ref.split
        return {
            "task_type": kind,
            "split": split,
            "goal": self._goal.instruction,
            "action_templates": (),
            "provenance": {
                "engine": "sero-native",
                "engine_version": engine_version(),
                "data_revision": shop.revision,
                "manifest_hash": goals.manifest_hash,
                "reward_version": REWARD_VERSION,
                "nouns": rules.nouns,
                "price_seed": shop.price_seed,
                "observation_mode": self._mode,
                "compat": rules.compat,
            },
        }

    # ------------------------------------------------------------------ inside

    def _play(self, goal: Goal, task_id: str) -> None:
        """Make `goal` current."""
        self._goal = goal
        self._name = session_name(task_id)
        layout = self._engine.layout
        self._first, self._heading = layout.index(goal.instruction), layout.head(goal.instruction)

    def _page_text(self) -> str:
        """What the page itself shows, without history."""
        session, engine, goal = self._session, self._engine, self._goal
        assert goal is not None
        if self._mode == "url":
            return engine.url(self._name, session)
        if self._mode == "html":
            return html_pages.page(engine, goal, session, self._bought, self._name)
        if session.page == INDEX:
            return self._first
        if self._bought is not None:
            asin = engine.shop.catalogue.asin(session.product)
            text: str = engine.layout.done(asin, session.options, self._bought.reward)
            return text
        return engine.text(session, self._view, self._name, self._heading)

    def _shown(self, command: str) -> str:
        """The observation after `command`: the page, behind pages and actions before it."""
        text = self._text
        if text is None:
            text = self._text = self._page_text()
        if self._keeps == NO_HISTORY:
            return text
        shown, self._seen, self._said = add(self._keeps, self._seen, self._said, command, text)
        return shown

    def _draw(self) -> int:
        return 1 + int(self.np_random.integers(KEY_LIMIT))

    def _restored_goal(self, task_id: str, given: object) -> Goal:
        running = self._goal if self._task_id == task_id else None
        if is_given(task_id):
            if running is not None and given == running:
                return running
            return given_goal(task_id, given)
        if given is not None:
            raise SnapshotMismatch(f"Task {task_id!r} has a goal of its own, and needs none given.")
        return self._played.goals.goal(task_id) if running is None else running
