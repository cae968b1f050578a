"""Write an oracle's demonstrations as a chat data set, for any supervised trainer.

    sero data export --env alfworld --n 500 --template field --out demonstrations.jsonl

One JSON object a line: `messages` (roles and contents), `task_id`, `step`, `provenance`. A line is
one turn with its whole prompt, as a policy with this template would see it; with `--trajectory` it
is a whole episode as one growing chat. Train on the assistant's messages. Only what the student saw
is written, and only episodes that were won, unless `--all`.

Privileged oracles, such as the default ones, know where hidden things are, so some commands cannot
be inferred from the prompt; `--oracle explorer` (ALFWorld) and `--oracle rule` (WebShop) know what
the student knows. The same options write the same bytes, and the file appears when it is complete.
`datasets.load_dataset("json", data_files=FILE)` reads it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, unset

if TYPE_CHECKING:
    from agent_envs.prompting import PromptTemplate
    from trainer.config import EnvConfig
    from trainer.supervised.demonstrations import Demonstration

ENVIRONMENTS = {"alfworld": "SeroALFWorld-v0", "webshop": "SeroWebShop-v0"}
STEPS = {"alfworld": 50, "webshop": 15}
"""As published."""


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero data export`."""

    out: Path
    """The file to write; it must not exist."""
    env: Annotated[str, tyro.conf.arg(metavar="{alfworld,webshop,module:name}")] = "alfworld"
    """Environment; `module:name`: one of your own, which needs an --oracle module:factory."""
    data: Annotated[str | None, unset("DATA")] = None
    """As for `sero play`; `generated`: small households or a small shop (default: what is found,
    else generated)."""
    split: str = "train"
    """Whose tasks are demonstrated."""
    n: Annotated[int | None, unset("N")] = None
    """Episodes, spread evenly over the sorted tasks (default: every task of the split)."""
    oracle: str = "planner"
    """Who demonstrates: one of the environment's own (`planner`: its first), or
    `module:factory`."""
    format: Literal["chat", "prompt-completion"] = "chat"
    """chat: `messages`; prompt-completion: the last message apart, as `prompt` and
    `completion`, two lists of messages."""
    template: Literal["field", "compact"] = "field"
    """Prompt template, as `prompt.template` of a config."""
    history_length: int = 2
    """Past steps in a prompt; a whole chat has them all."""
    max_steps: Annotated[int | None, unset("N")] = None
    """Steps in an episode (default: as published, ALFWorld 50, WebShop 15; of your own environment
    what it has, or 50)."""
    trajectory: bool = False
    """One line an episode in place of one a turn."""
    random_share: float = 0.0
    """Steps replaced by a random admissible command: in the history, never a reply."""
    inadmissible_share: float = 0.0
    """The same by a refused command; a policy cloned without any never learns what follows one."""
    all: bool = False
    """Also episodes that were not won."""
    seed: int = 0
    """Of the replaced steps."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Demonstrate, write, print; 0 once the file is written."""
    _check(args)
    from agent_envs.prompting import get_template
    from trainer.worlds.environments import environment_of

    pages = environment_of(_env_id(args)).pages
    template = get_template(args.template, history_length=args.history_length, pages=pages)
    counts = {"episodes": 0, "won": 0, "lines": 0}
    digest = _write_whole(args.out, _lines(args, template, counts))
    figures: dict[str, Any] = {
        "out": str(args.out),
        "env": _env_id(args),
        "oracle": args.oracle,
        **counts,
        "prompt_hash": template.hash,
        "sha256": digest,
    }
    print(f"{args.out}: {counts['lines']} lines, {counts['won']} of {counts['episodes']} won")
    emit(figures, args.json)
    return 0


def _env_id(args: Args) -> str:
    return ENVIRONMENTS.get(args.env, args.env)


def _env_config(args: Args) -> EnvConfig:
    from trainer.config import EnvConfig

    given: dict[str, Any] = {"data": args.data}
    if args.env not in ENVIRONMENTS and args.data is None:
        del given["data"]  # for one's own, null would be a value
    steps = args.max_steps
    if steps is None:
        steps = STEPS[args.env] if args.env in STEPS else _own_steps(args)
    config = EnvConfig(id=_env_id(args), split=args.split, max_steps=steps, **given)
    config.check()
    return config


def _own_steps(args: Args) -> int:
    """How many steps the episodes of somebody's environment have, made without `max_steps`."""
    from contextlib import closing

    from trainer.worlds.named import arguments_of, maker_of, somebodys

    maker = maker_of(args.env, "--env")
    given = {"data": args.data, "split": args.split}
    taken = arguments_of(args.env, maker)
    options = {k: v for k, v in given.items() if k in taken and v is not None}
    with somebodys(f"--env {args.env}"), closing(maker(**options)) as env:
        steps = getattr(env.unwrapped, "max_steps", None)
    return steps if isinstance(steps, int) else 50


def _check(args: Args) -> None:
    if args.env not in ENVIRONMENTS and ":" not in args.env:
        known = ", ".join(ENVIRONMENTS)
        raise SeroError(f"--env {args.env}: expected {known}, or module:name for one of your own.")
    if args.n is not None and args.n < 1:
        raise SeroError(f"--n {args.n}: expected 1 or more.")
    if args.history_length < 0:
        raise SeroError(f"--history-length {args.history_length}: expected 0 or more.")
    shares = args.random_share, args.inadmissible_share
    if min(shares) < 0 or not sum(shares) < 1:
        raise SeroError(
            f"--random-share {shares[0]} and --inadmissible-share {shares[1]}: expected 0 or more, "
            "and less than 1 together."
        )
    if args.trajectory and any(shares):
        raise SeroError(
            "--trajectory with replaced steps would teach them as the assistant's own. Leave out "
            "--random-share and --inadmissible-share, or --trajectory."
        )
    if args.trajectory and args.format != "chat":
        raise SeroError(
            f"--format {args.format} has one reply a line, --trajectory has all of an episode. "
            "Choose one."
        )
    if args.out.exists():
        raise SeroError(f"--out {args.out} exists. Name a new file, or remove it.")
    if not args.out.parent.is_dir():
        raise SeroError(f"--out {args.out}: there is no folder {args.out.parent}.")


def _lines(args: Args, template: PromptTemplate, counts: dict[str, int]) -> Iterator[str]:
    """The lines in order; counts as it goes.

    Raises:
        SeroError: there are fewer tasks than asked for, or no line came of it.
    """
    from trainer.cli.progress import bars
    from trainer.config import WarmstartConfig
    from trainer.supervised.demonstrations import demonstrate
    from trainer.worlds.oracles import make_oracle
    from trainer.worlds.tasks import make_env, open_tasks, split_tasks, spread

    config = _env_config(args)
    oracle = make_oracle(args.oracle, None, config.id)
    task_set = open_tasks(config, "--data")
    tasks = split_tasks(config, task_set, args.split)
    if args.n is not None and args.n > len(tasks):
        raise SeroError(
            f"--n {args.n}: split {args.split!r} of {task_set.source} has {len(tasks)} tasks."
        )
    chosen = spread(tasks, args.n)
    env = make_env(config, task_set, args.split)
    noise = WarmstartConfig(
        random_share=args.random_share, inadmissible_share=args.inadmissible_share, seed=args.seed
    )
    told = _origin(args, config, template, task_set.manifest_hash)
    with bars() as progress:
        bar = progress.add_task("episodes", total=len(chosen), note="")
        for index, task in enumerate(chosen):
            shown = demonstrate(env, task, noise, index, hidden=template.hidden, planner=oracle)
            counts["episodes"] += 1
            counts["won"] += shown.success
            if shown.decisions and (shown.success or args.all):
                for line in _of_episode(args, shown, template, told):
                    counts["lines"] += 1
                    yield json.dumps(line, ensure_ascii=False, allow_nan=False)
            progress.advance(bar)
    env.close()
    if not counts["lines"]:
        raise SeroError(
            f"None of {counts['episodes']} episodes was won by {args.oracle} within "
            f"{config.max_steps} steps, so there is nothing to write. Raise --max-steps, choose "
            "another --oracle, or take the lost ones with --all."
        )


def _origin(
    args: Args, config: EnvConfig, template: PromptTemplate, manifest_hash: str
) -> dict[str, Any]:
    """What is the same in every line's provenance."""
    return {
        "env_id": config.id,
        "split": args.split,
        "max_steps": config.max_steps,
        "manifest_hash": manifest_hash,
        "oracle": args.oracle,
        "template": template.name,
        "template_version": template.version,
        "history_length": args.history_length,
        "prompt_hash": template.hash,
        "seed": args.seed,
    }


def _of_episode(
    args: Args, shown: Demonstration, template: PromptTemplate, told: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    from trainer.supervised.demonstrations import chat_turns, trajectory_chat

    about = {**told, "success": shown.success, **_plain(shown.provenance)}
    if args.trajectory:
        messages = trajectory_chat(shown, template)
        first = shown.decisions[0][0].step
        yield {"messages": messages, "task_id": shown.task_id, "step": first, "provenance": about}
        return
    for (view, _), turn in zip(shown.decisions, chat_turns(shown, template), strict=True):
        said: dict[str, Any] = {"messages": turn}
        if args.format == "prompt-completion":
            said = {"prompt": turn[:-1], "completion": turn[-1:]}
        yield {**said, "task_id": shown.task_id, "step": view.step, "provenance": about}


def _plain(provenance: Any) -> dict[str, Any]:
    """What the environment says about itself, one level deep: every line has the same columns."""
    kept = (str, int, float, bool)
    return {k: v if isinstance(v, kept) else json.dumps(v) for k, v in provenance.items()}


def _write_whole(path: Path, lines: Iterator[str] | Sequence[str]) -> str:
    """Writes all lines or no file; returns the SHA-256 of its bytes."""
    import hashlib

    digest = hashlib.sha256()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SeroError(f"cannot write {path}: {error}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            for line in lines:
                data = line.encode() + b"\n"
                digest.update(data)
                file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise SeroError(f"cannot write {path}: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return digest.hexdigest()
