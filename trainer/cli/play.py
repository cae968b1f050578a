"""Play an environment in the terminal.

Type a command as the game lists it (TAB completes it, arrow keys bring earlier lines back), or one
of `:actions`, `:undo`, `:oracle`, `:restart`, `:next`, `:help`, `:quit`. Undoing is a restore: it
also takes back the end of an episode. Lines may come from a pipe, or from a file with `--commands
FILE`, which also serves to reproduce an episode. `--oracle` alone asks the environment's own first
oracle; `--oracle NAME` another of its own (such as `explorer` or `rule`), or `module:factory`.
"""

from __future__ import annotations

import difflib
import inspect
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import tyro
from gymnasium.envs.registration import load_env_creator
from rich.console import Console

import agent_envs  # noqa: F401  (registers the environment ids)
from agent_envs.errors import SeroError
from trainer.cli.common import emit, parse_args, unset
from trainer.cli.play_input import at_a_terminal, file_lines, piped_lines, typed_lines
from trainer.cli.play_session import Session
from trainer.worlds.environments import PLANNER
from trainer.worlds.named import arguments_of, maker_of, somebodys


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero play`."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = "alfworld"
    """Environment: `alfworld`, `webshop`, an id of this package, or `module:name` for your own."""
    oracle: Annotated[str | None, unset("[NAME]")] = None
    """Show this oracle's next action at every step (default: none; without a name: the
    environment's first)."""
    data: Annotated[str | None, unset("DATA")] = None
    """ALFWorld: a tree, a folder, an archive, one game file; WebShop: a folder of its files or an
    imported one; both: generated:small?seed=1 (default: $SERO_ALFWORLD_DATA, $ALFWORLD_DATA or
    $SERO_WEBSHOP_DATA, else generated ones)."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """train, valid_seen or valid_unseen; WebShop: train, val or test (default: train, or the split
    of --task-id)."""
    goal_source: Annotated[str | None, unset("NAME")] = None
    """Who wrote the tasks. ALFWorld: template or human; WebShop: synthetic or human (default: the
    environment's)."""
    observation_mode: Annotated[str | None, unset("MODE")] = None
    """WebShop: text, text_rich, html or url (default: text)."""
    task_id: Annotated[str | None, unset("ID")] = None
    """Play this task (default: the first of the schedule of --seed)."""
    seed: int = 0
    """Seed of the order of tasks."""
    max_steps: Annotated[int | None, unset("N")] = None
    """Steps in an episode (default: the environment's)."""
    commands: Annotated[Path | None, unset("FILE")] = None
    """Play the lines of this file instead of asking."""
    history: Annotated[Path | None, unset("FILE")] = None
    """Keep what is typed in this file, and continue from it (default: forget it)."""
    json: bool = False
    """Print the outcome as one JSON object on the last line."""


def parse(words: Sequence[str]) -> Any:
    """`Args`, where `--oracle` may stand alone, also before the name of the environment."""
    named: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--oracle":
            word += f"={rest.pop(0) if rest and _is_name(rest[0]) else PLANNER}"
        named.append(word)
    return parse_args(sys.modules[__name__], "sero play", named)


def _is_name(word: str) -> bool:
    if word.startswith("-"):
        return False
    try:
        find_env(word)
    except SeroError:
        return True
    return False


def run(args: Args) -> int:
    """Play; the exit code is 0 unless the session could not start."""
    own = ":" in args.env and not args.env.startswith("agent_envs:")
    env_id = args.env if own else find_env(args.env)
    make = maker_of(env_id, "ENV") if own else partial(gymnasium.make, env_id)
    if args.seed < 0:
        raise SeroError(f"--seed {args.seed}: expected a whole number from 0 up.")
    _accept_any_character()
    options = _options(args, env_id, arguments_of(env_id, make) if own else _taken(env_id))
    with somebodys(env_id) if own else nullcontext():
        env = make(**options)
    session = Session(env, Console(highlight=False, emoji=False, markup=False), args.oracle, env_id)
    try:
        with _lines(args, session) as lines:
            session.begin(seed=args.seed, task_id=args.task_id)
            session.play(lines)
    finally:
        env.close()
    outcome = {k: session.info[k] for k in ("task_id", "success", "score", "stop_reason")}
    emit({"env": env_id, **outcome, "steps": session.steps}, args.json)
    return 0


def find_env(name: str) -> str:
    """The registered id that `name` stands for: itself, or say `alfworld` for SeroALFWorld-v0.

    Raises:
        SeroError: there is none; suggests the nearest.
    """
    ids = sorted(known for known in gymnasium.registry if known.startswith("Sero"))
    short = {known[len("Sero") :].partition("-")[0].lower(): known for known in ids}
    name = name.removeprefix("agent_envs:")
    if name in ids:
        return name
    if name.lower() in short:
        return short[name.lower()]
    near = difflib.get_close_matches(name, [*short, *ids], 1, 0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise SeroError(
        f"there is no environment {name!r} to play. {hint}Known: {', '.join([*short, *ids])}; "
        "or module:name for one of your own."
    )


def _taken(env_id: str) -> frozenset[str]:
    """Names of the arguments of a registered environment."""
    entry: Any = gymnasium.registry[env_id].entry_point
    create = load_env_creator(entry) if isinstance(entry, str) else entry
    return frozenset(inspect.signature(create).parameters)


def _options(args: Args, env_id: str, known: frozenset[str]) -> dict[str, Any]:
    """Arguments of the environment: what was given, and the split to play.

    Raises:
        SeroError: one was given that this environment does not have.
    """
    names = ("data", "split", "goal_source", "observation_mode", "max_steps")
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    for name in options.keys() - known:
        raise SeroError(f"--{name.replace('_', '-')}: {env_id} has no such option.")
    if "split" in known:
        options.setdefault("split", None if args.task_id else "train")
    return options


@contextmanager
def _lines(args: Args, session: Session) -> Iterator[Iterable[str]]:
    def show(line: str, end: str) -> None:
        session.say(line, "bold yellow", end)

    if args.commands is not None:
        yield file_lines(args.commands, show)
    elif at_a_terminal():
        with typed_lines(session.candidates, args.history) as lines:
            session.say(":help lists what can be typed besides the game's commands", "dim")
            yield lines
    else:
        yield piped_lines(show)


def _accept_any_character() -> None:
    """What a terminal or pipe cannot encode or decode is shown by its number, not a crash."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
