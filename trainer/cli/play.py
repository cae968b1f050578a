"""Play an environment in the terminal.

Type a command as the game lists it, or one of `:hint` (the oracle's next action), `:undo` (back by
one step), `:again` (restart this task), `:next` (another task), `:help`, `:quit`. With `--commands
FILE` the lines of a file are played instead, which also serves to reproduce an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import tyro
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import agent_envs
from agent_envs.errors import SeroError
from trainer.cli.common import emit, printable, unset

ALIASES = {"alfworld": "SeroALFWorld-v0"}
HELP = "commands: as listed above, or  :hint  :undo  :again  :next  :help  :quit"
EXPLAINED = """Type a command as the game lists it. Besides:
  :hint   show the oracle's next action        :next   another task
  :undo   back by one step                     :quit   leave (or Ctrl-D)
  :again  restart this task"""


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero play`."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = "alfworld"
    """Environment: `alfworld`, or any registered id."""
    oracle: bool = False
    """Show the oracle's next action at every step."""
    data: Annotated[str | None, unset("GAMES")] = None
    """An ALFWorld tree, a folder, an archive, one game file, or generated:small?seed=1
    (default: $SERO_ALFWORLD_DATA, $ALFWORLD_DATA, else generated households)."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """train, valid_seen or valid_unseen (default: train, or the split of --task-id)."""
    task_id: Annotated[str | None, unset("ID")] = None
    """Play this task (default: the first of the schedule of --seed)."""
    seed: int = 0
    """Seed of the order of tasks."""
    commands: Annotated[Path | None, unset("FILE")] = None
    """Play the lines of this file instead of asking."""
    json: bool = False
    """Print the outcome as one JSON object on the last line."""


class Game:
    """One person's session: the current episode, what can be undone, what is shown.

    Args:
        env: an environment of ours, as `gymnasium.make` returns it.
        console: where to print.
        oracle: show the next action of the oracle at every step.
    """

    def __init__(self, env: gymnasium.Env[str, str], console: Console, oracle: bool) -> None:
        self.env = env
        self.console = console
        self.oracle = oracle
        self.info: dict[str, Any] = {}
        self.steps = 0
        self.over = False
        self._undo: list[agent_envs.Snapshot] = []

    def begin(self, seed: int | None = None, task_id: str | None = None) -> None:
        """Start a task and show it."""
        options = None if task_id is None else {"task_id": task_id}
        observation, self.info = self.env.reset(seed=seed, options=options)
        self._undo.clear()
        self.steps, self.over = 0, False
        # In one piece, to be copied: whoever wants this task again gives it as --task-id.
        line = Text(printable(f"task {self.info['task_id']}"), style="dim")
        self.console.print(line, soft_wrap=True)
        self.show(observation)

    def show(self, observation: str) -> None:
        """Print an observation with the goal and what can be done next."""
        self.console.print(Panel(Text(printable(observation)), border_style="cyan"))
        self._print(f"goal: {self.info['goal']}   steps left: {self.info['steps_left']}", "bold")
        if self.over:
            won = self.info["success"]
            self._print(
                f"{'You won' if won else 'Out of steps'} after {self.steps} steps. "
                ":undo  :again  :next  :quit",
                "bold green" if won else "bold red",
            )
            return
        actions = [Text(printable(a)) for a in self.info["admissible_actions"]]
        self.console.print(Columns(actions, padding=(0, 3), column_first=True))
        for template in self.info["action_templates"]:
            if "<" in template and not actions:
                self._print(template, "dim")
        if self.oracle:
            self.hint()

    def act(self, command: str) -> None:
        """Execute a game command."""
        if self.over:
            self._print("The episode is over. :undo  :again  :next  :quit", "yellow")
            return
        self._undo.append(agent_envs.snapshot(self.env))
        observation, _, terminated, truncated, self.info = self.env.step(command)
        self.steps += 1
        self.over = terminated or truncated
        self.show(observation)

    def undo(self) -> None:
        """Go back to before the last step."""
        if not self._undo:
            self._print("Nothing to undo: this is where the episode began.", "yellow")
            return
        observation, self.info = agent_envs.restore(self.env, self._undo.pop())
        self.steps -= 1
        self.over = False
        self.show(observation)

    def hint(self) -> None:
        """Show the next action of the oracle for this environment."""
        if self.over:
            self._print("The episode is over. :undo  :again  :next  :quit", "yellow")
            return
        self._print(f"oracle: {next_action(self.env)}", "magenta")

    def play(self, lines: Iterator[str], echo: bool) -> None:
        """Play `lines` until they end or one of them is `:quit`."""
        specials: dict[str, Callable[[], None]] = {
            ":undo": self.undo,
            ":hint": self.hint,
            ":again": lambda: self.begin(task_id=self.info["task_id"]),
            ":next": self.begin,
            ":help": lambda: self._print(EXPLAINED, "dim"),
        }
        for line in lines:
            command = line.strip()
            if echo and command:
                self._print(f"> {command}", "bold yellow")
            if command in (":quit", ":q"):
                return
            if command in specials:
                specials[command]()
            elif command.startswith(":"):
                self._print(f"Unknown: {command}. {HELP}", "yellow")
            elif command:
                self.act(command)

    def _print(self, text: str, style: str) -> None:
        self.console.print(Text(printable(text), style=style))


def next_action(env: gymnasium.Env[str, str]) -> str:
    """The planner's next action in the current state of `env`, or why there is none."""
    from oracles.alfworld_planner import ALFWorldPlanner
    from oracles.base import PlanStatus

    base: Any = env.unwrapped
    plan = ALFWorldPlanner().plan(base.privileged(), agent_envs.remaining_steps(env), 1.0)
    why = f"{plan.status}: {plan.detail}" if plan.detail else str(plan.status)
    if not plan.actions:
        return f"no action ({why})"
    more = f"then {len(plan.actions) - 1} more" if len(plan.actions) > 1 else "the last one"
    return f"{plan.actions[0]}   ({more if plan.status == PlanStatus.FOUND else why})"


def run(args: Args) -> int:
    """Play; the exit code is 0 unless the session could not start."""
    env_id = ALIASES.get(args.env, args.env)
    if env_id not in gymnasium.registry or not env_id.startswith("Sero"):
        ids = sorted(name for name in gymnasium.registry if name.startswith("Sero"))
        known = ", ".join([*ALIASES, *ids])
        raise SeroError(f"there is no environment {args.env!r} to play. Known: {known}.")
    if args.seed < 0:
        raise SeroError(f"--seed {args.seed}: expected a whole number from 0 up.")
    commands = None if args.commands is None else _read(args.commands)
    split = args.split if args.split or args.task_id else "train"
    env = gymnasium.make(env_id, data=args.data, split=split)
    game = Game(env, Console(highlight=False, emoji=False, markup=False), args.oracle)
    try:
        game.begin(seed=args.seed, task_id=args.task_id)
        if commands is None:
            game.console.print(Text(HELP, style="dim"))
        game.play(_ask() if commands is None else iter(commands), echo=commands is not None)
    finally:
        env.close()
    outcome = {k: game.info[k] for k in ("task_id", "success", "score", "stop_reason")}
    emit({"env": env_id, **outcome, "steps": game.steps}, args.json)
    return 0


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SeroError(f"--commands {path} cannot be read as text: {error}.") from error


def _ask() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401  (editing and history for `input`, where there is one)
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
