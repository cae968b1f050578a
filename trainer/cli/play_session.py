"""One person's session of `sero play`: the episode, what can be undone, what is shown.

Whatever comes from a game or a person is printed as plain text: control characters are made
visible (`printable`) and markup means nothing. Without an oracle nothing is shown that
observations, `info` and the person's own commands do not say.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from rapidfuzz import process
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import agent_envs
from agent_envs.errors import SeroError
from oracles.base import Decision, HistoryItem, Oracle, Plan, Planner, PlanStatus
from trainer.cli.common import printable
from trainer.rollouts.data import CUT_OFF
from trainer.worlds.oracles import make_oracle

PLAN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Special:
    """A word that is for the session and not for the game."""

    usage: str
    meaning: str


SPECIALS: dict[str, Special] = {
    ":actions": Special(":actions [WORD]", "what the game accepts now (with WORD in it)"),
    ":undo": Special(":undo [N]", "back by one step, or by N"),
    ":oracle": Special(":oracle", "the oracle's whole plan from here (with --oracle)"),
    ":restart": Special(":restart", "this task from its start"),
    ":next": Special(":next", "another task"),
    ":help": Special(":help", "this text"),
    ":quit": Special(":quit", "leave (or Ctrl-D)"),
}
AT_THE_END = ":undo  :restart  :next  :quit"


class Session:
    """The episode that a person plays.

    Args:
        env: an environment of ours, as `gymnasium.make` returns it.
        console: where to print; markup has to be off.
        oracle: name of the oracle whose next action is shown at every step, one of the
            environment's own or `module:factory`; None: nothing is shown.
        env_id: what the environment was named as; None: its registered id.

    Raises:
        ConfigError: the environment has no such oracle.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        console: Console,
        oracle: str | None,
        env_id: str | None = None,
    ) -> None:
        self.env = env
        self.console = console
        self.oracle: Oracle[Any] | None = None
        if oracle is not None:
            if env_id is None:
                env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
            self.oracle = make_oracle(oracle, PLAN_SECONDS, env_id)
        self.info: dict[str, Any] = {}
        self.over = False
        self._observation = ""
        self._undo: list[agent_envs.Snapshot] = []
        self._history: list[HistoryItem] = []
        """What was seen and typed since the start, refused commands included."""

    @property
    def steps(self) -> int:
        """Commands since the start of the episode."""
        return len(self._history)

    # ------------------------------------------------------------------ playing

    def begin(self, seed: int | None = None, task_id: str | None = None) -> None:
        """Start a task and show it."""
        options = None if task_id is None else {"task_id": task_id}
        self._started(*self.env.reset(seed=seed, options=options))

    def next_task(self) -> None:
        """Start the next task of the schedule; the present one only if there is no other."""
        present = self.info["task_id"]
        observation, info = self.env.reset()
        if info["task_id"] == present:  # it was asked for by its id, out of turn
            observation, info = self.env.reset()
        self._started(observation, info)

    def _started(self, observation: str, info: dict[str, Any]) -> None:
        self.info = info
        self._undo.clear()
        self._history.clear()
        self.over = False
        # In one piece, to be copied: whoever wants this task again gives it as --task-id.
        line = Text(printable(f"task {info['task_id']}"), style="dim")
        self.console.print(line, soft_wrap=True)
        self.show(observation)

    def act(self, command: str) -> None:
        """Execute a game command."""
        if self.over:
            self.say(f"The episode is over. {AT_THE_END}", "yellow")
            return
        before = agent_envs.snapshot(self.env)
        offered = self.info["admissible_actions"]
        observation, _, terminated, truncated, self.info = self.env.step(command)
        self._undo.append(before)
        seen = HistoryItem(self._observation, command, bool(self.info["command_valid"]))
        self._history.append(seen)
        self.over = terminated or truncated
        self.show(observation, "" if self.info["command_valid"] else _refused(command, offered))

    def undo(self, count: int = 1) -> None:
        """Go back by `count` steps, or to the start; the end of the episode is undone as well."""
        if not self._undo:
            self.say("Nothing to undo: this is where the episode began.", "yellow")
            return
        count = min(count, len(self._undo))
        observation, self.info = agent_envs.restore(self.env, self._undo[-count])
        del self._undo[-count:]
        del self._history[-count:]
        self.over = False
        self.show(observation)

    def play(self, lines: Iterable[str]) -> None:
        """Play `lines` until they end or one of them is `:quit`."""
        for line in lines:
            command = line.strip()
            if command == ":quit":
                return
            if command.startswith(":"):
                self._special(command)
            elif command:
                self.act(command)

    def candidates(self) -> tuple[str, ...]:
        """What a line can be completed to."""
        if self.over:
            return tuple(SPECIALS)
        # Of a form such as `search[<query>]`, what stands before the part to fill in.
        forms = [form.partition("<")[0] for form in self.info.get("action_templates", ())]
        return (*self.info.get("admissible_actions", ()), *filter(None, forms), *SPECIALS)

    def _special(self, command: str) -> None:
        word, _, rest = command.partition(" ")
        rest = rest.strip()
        plain: dict[str, Callable[[], None]] = {
            ":oracle": self.show_plan,
            ":restart": lambda: self.begin(task_id=self.info["task_id"]),
            ":next": self.next_task,
            ":help": self.show_help,
        }
        if word == ":actions":
            self.show_actions(rest)
        elif word == ":undo" and (count := _whole(rest or "1")):
            self.undo(count)
        elif word in plain and not rest:
            plain[word]()
        elif word in SPECIALS:
            self.say(f"Use it as {SPECIALS[word].usage}", "yellow")
        else:
            near = difflib.get_close_matches(word, SPECIALS, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            self.say(f"Unknown: {word}.{hint} :help lists what there is.", "yellow")

    # ------------------------------------------------------------------ showing

    def say(self, text: str, style: str = "", end: str = "\n") -> None:
        """Print a line of our own, which may quote a game or a person."""
        if text:
            # In one piece, as the terminal breaks it: a command may be copied from it.
            self.console.print(Text(printable(text), style=style), end=end, soft_wrap=True)
        else:
            self.console.line()  # of an empty text, rich would print nothing at all

    def show(self, observation: str, remark: str = "") -> None:
        """Print an observation with the goal and what can be done next."""
        self._observation = observation
        self.console.print(Panel(Text(printable(observation)), border_style="cyan"))
        if remark:
            self.say(remark, "yellow")
        left = self.info["steps_left"]
        self.say(
            f"goal: {self.info['goal']}   steps left: {'no limit' if left is None else left}",
            "bold",
        )
        if self.over:
            steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
            self.say(
                f"{_outcome(self.info)} after {steps}. {AT_THE_END}",
                "bold green" if self.info["success"] else "bold red",
            )
        else:
            self.show_actions()
        if self.oracle is not None:
            self.say(f"oracle: {_answer(self.ask())}", "magenta")

    def show_actions(self, word: str = "") -> None:
        """Print the admissible commands that contain `word`, and the forms of those unlisted."""
        actions = [a for a in self.info["admissible_actions"] if word in a]
        if self.over:
            self.say(f"The episode is over. {AT_THE_END}", "yellow")
            return
        if actions:
            texts = [Text(printable(a)) for a in actions]
            self.console.print(Columns(texts, padding=(0, 3), column_first=True))
        elif word:
            self.say(f"No action with {word!r} in it.", "yellow")
        for template in self.info["action_templates"]:
            self.say(template, "dim")

    def show_help(self) -> None:
        """Print what can be typed."""
        width = max(len(special.usage) for special in SPECIALS.values())
        self.say("Type a command as the game lists it; TAB completes it. Besides:", "dim")
        for special in SPECIALS.values():
            self.say(f"  {special.usage:<{width}}  {special.meaning}", "dim")

    def show_plan(self) -> None:
        """Print all commands that the oracle would give from here, as far as it lays them out."""
        if self.oracle is None:
            self.say(
                "The oracle sees what you cannot see. `sero play --oracle` lets you ask it.",
                "yellow",
            )
            return
        answer = self.ask()
        self.say(f"oracle: {_answer(answer)}", "magenta")
        if isinstance(answer, Decision):
            self.say("It decides step by step and lays out no plan.", "dim")
            return
        for number, action in enumerate(answer.actions, start=1):
            self.say(f"  {number}. {action}", "magenta")

    def ask(self) -> Plan | Decision:
        """The oracle's plan for the present state, or its next command if it makes no plans."""
        oracle = self.oracle
        if oracle is None:
            return Plan(PlanStatus.UNSUPPORTED, (), "no oracle was asked for")
        if self.over and not self.info["success"]:
            out = self.info["stop_reason"] in CUT_OFF
            why = "no steps are left" if out else "the episode is over"
            return Plan(PlanStatus.OVER_BUDGET, (), why)
        base: Any = self.env.unwrapped
        try:
            view = base.privileged() if oracle.privileged else None
            if isinstance(oracle, Planner):
                left = agent_envs.remaining_steps(self.env)
                return oracle.plan(view, left, PLAN_SECONDS)
            if self.over:
                return Plan(PlanStatus.ALREADY_DONE, ())
            # From the start again, so that an undone step leaves nothing behind in it.
            state = oracle.start(view, tuple(self._history))
            return oracle.act(state, view, self._observation)[0]
        except SeroError as error:
            return Plan(PlanStatus.UNSUPPORTED, (), str(error))


def _answer(answer: Plan | Decision) -> str:
    if isinstance(answer, Plan):
        return in_words(answer)
    if answer.action is None:
        return in_words(Plan(answer.status, (), answer.detail))
    if answer.status is not PlanStatus.FOUND:
        return in_words(Plan(answer.status, (answer.action,), answer.detail))
    return f"{answer.action}   ({answer.detail})" if answer.detail else answer.action


def in_words(plan: Plan) -> str:
    """The next action of a plan and what comes after it, or its status where there is none.

    >>> in_words(Plan(PlanStatus.FOUND, ("open box 1", "look")))
    'open box 1   (then 1 more)'
    >>> in_words(Plan(PlanStatus.FOUND, ("click[buy now]",), "worth 0.5"))
    'click[buy now]   (the last one; worth 0.5)'
    >>> in_words(Plan(PlanStatus.UNSOLVABLE, (), "nothing can hold it"))
    'unsolvable: nothing can hold it'
    """
    status = str(plan.status).replace("_", " ")
    why = f"{status}: {plan.detail}" if plan.detail else status
    if not plan.actions:
        return why
    if plan.status is not PlanStatus.FOUND:
        return f"{plan.actions[0]}   ({why})"
    more = len(plan.actions) - 1
    after = f"then {more} more" if more else "the last one"
    return f"{plan.actions[0]}   ({after}{f'; {plan.detail}' if plan.detail else ''})"


def _whole(text: str) -> int:
    """The number that `text` is, 0 if it is none; a very large one counts as a large one."""
    digits = text.lstrip("0")
    return 0 if not digits.isdecimal() else int(digits) if len(digits) < 10 else 10**9


def _outcome(info: Mapping[str, Any]) -> str:
    """How an episode ended, in words.

    >>> _outcome({"success": False, "stop_reason": "purchase", "score": 0.6667})
    'Ended by purchase, score 0.67,'
    """
    if info["success"]:
        return "You won"
    if info["stop_reason"] in CUT_OFF:
        return "Out of steps"
    return f"Ended by {info['stop_reason']}, score {info['score']:.2f},"


def _refused(command: str, offered: tuple[str, ...]) -> str:
    near = process.extractOne(command, offered, score_cutoff=60)
    return "refused; the step is spent" + (f". Near it: {near[0]}" if near else "")
