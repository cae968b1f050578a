"""The main job from nothing: play, branch an oracle, train a tiny policy, write a report.

Without --seeds: one policy is warm-started on planner demonstrations, evaluated on held-out tasks,
trained with GRPO and SERO, evaluated again; runs/demo/report.html shows it all. Minutes on two
cores.

With --seeds N: for N seeds, the same warm start is trained with GRPO, with GRPO and SERO, and with
two controls that train the format of the policy's own replies (alone, and beside GRPO). All are
evaluated on the same held-out tasks; runs/comparison/comparison.json has every figure and the
paired differences with their intervals. Ten minutes a seed on two cores. What is broken off is
continued by the same command.

Games are generated households, or real games where SERO_ALFWORLD_DATA or ALFWORLD_DATA is set.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_envs.errors import SeroError
from trainer.cli import progress
from trainer.cli.common import checkpoints_in, emit, interrupted, printable, unset
from trainer.demo.recipe import (
    COMPARISON,
    HELD_OUT,
    QUICK,
    Arm,
    DemoRecipe,
    on_real_games,
    real_data,
)
from trainer.errors import ConfigError

_OURS = (
    *("run.json", "status.json", "warmstart.json", "metrics.jsonl", "roots.jsonl", "report.html"),
    *("initial", "checkpoints", "eval", "turns", "aside", "recipe.json", "comparison.json"),
)
"""In the folder of a demonstration, or of a comparison beside its `seed-*`."""


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero demo`."""

    recipe: DemoRecipe
    """What is trained and for how long."""
    seeds: Annotated[int | None, unset("N")] = None
    """Run the comparison over so many seeds (0, 1, ...)."""
    seed: int = 0
    """Seed of the demonstration (without --seeds)."""
    workers: int = 2
    """Processes of the comparison."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Folder (default: runs/demo, with --seeds runs/comparison)."""
    fresh: bool = False
    """Remove what an earlier demo left in the folder and start anew."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def parse(words: Sequence[str]) -> Args:
    """The recipe's defaults depend on what is asked for."""
    compared = any(word.split("=")[0] == "--seeds" for word in words)
    recipe = COMPARISON if compared else QUICK
    recipe = on_real_games(recipe) if real_data() else recipe
    args: Args = tyro.cli(
        Args,
        prog="sero demo",
        args=list(words),
        description=__doc__,
        default=Args(recipe),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
    return args


def run(args: Args) -> int:
    """Run to the end; 0 once everything was trained, evaluated and written."""
    console = Console(highlight=False, markup=False, emoji=False)
    if args.seeds is not None and args.seeds < 1:
        raise SeroError(f"--seeds {args.seeds}: expected a whole number from 1 up.")
    out = args.out or Path("runs") / ("demo" if args.seeds is None else "comparison")
    if args.workers < 1:
        raise SeroError(f"--workers {args.workers}: expected a whole number from 1 up.")
    if args.recipe.held_out < len(HELD_OUT):
        raise SeroError(f"--held-out {args.recipe.held_out}: expected 2 or more, half a split.")
    try:
        args.recipe.config(Arm.SERO, args.seed)
    except ConfigError as error:
        raise SeroError(f"These options make no run: {error}") from error
    if args.fresh:
        _remove_ours(out)
    if args.seeds is None:
        return _demonstrate(args, out, console)
    return _compare(args, out, console)


def _remove_ours(out: Path) -> None:
    """Removes what a demo writes, and nothing else that may lie in the folder."""
    if not any((out / name).exists() for name in ("run.json", "recipe.json")):
        return
    for path in [*map(out.joinpath, _OURS), *out.glob("seed-*")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _demonstrate(args: Args, out: Path, console: Console) -> int:
    from trainer.demo.runs import run_arm
    from trainer.report import counted, read_run, write_report

    begin = time.monotonic()
    recipe = args.recipe
    show_branch(recipe.config(Arm.SERO, args.seed).env, console)
    console.print(
        f"\nTraining a policy of about {_millions(recipe)} million parameters: "
        f"{recipe.demonstrations} planner demonstrations, then "
        f"{counted(recipe.iterations, 'iteration')} of GRPO with SERO. Files: {out}"
    )
    warm_steps = recipe.text_steps + recipe.warm_steps if recipe.demonstrations else 0
    if checkpoints_in(out):
        warm_steps = 0  # it goes on from there
    with (
        interrupted(lambda: _what_is_kept(out)),
        progress.training(warm_steps, recipe.iterations) as hooks,
    ):
        run_arm(recipe, Arm.SERO, args.seed, out, **hooks.as_arguments())
    minutes = (time.monotonic() - begin) / 60
    report = read_run(
        out,
        title="A tiny policy on household tasks, before and after training",
        lead=(
            f"A policy of about {_millions(recipe)} million parameters was cloned from "
            f"{recipe.demonstrations} planner demonstrations, then trained for "
            f"{counted(recipe.iterations, 'iteration')} with GRPO and SERO. Below: "
            "how often it solves tasks that it has never seen, before and after."
        ),
        facts=(
            ("games", real_data() or "generated households"),
            ("task types", str(len(recipe.task_types))),
            ("steps allowed", str(recipe.max_steps)),
            ("rollouts an iteration", str(recipe.tasks * recipe.rollouts)),
            ("seed", str(args.seed)),
            ("minutes", f"{minutes:.1f}"),
        ),
        before="warm start",
        after="GRPO + SERO",
    )
    path = write_report(report, out / "report.html")
    table = Table(title="held-out tasks solved")
    for column in ("split", "policy", "solved", "of", "share"):
        table.add_column(column)
    for e in report.evaluations:
        share = f"{e.successes / e.tasks:.1%}" if e.tasks else "-"
        table.add_row(e.split, e.label, str(e.successes), str(e.tasks), share)
    console.print(table)
    for line in report.idle:
        console.print(line, soft_wrap=True)
    console.print(f"{minutes:.1f} minutes. Open {path} in a browser.", soft_wrap=True)
    figures: dict[str, Any] = {"run": str(out), "report": str(path), "minutes": minutes}
    for e in report.evaluations:
        figures.setdefault(e.label.replace(" ", "_"), {})[e.split] = [e.successes, e.tasks]
    emit(figures, args.json)
    return 0


def _compare(args: Args, out: Path, console: Console) -> int:
    from trainer.demo.runs import compare

    assert args.seeds is not None
    recipe = replace(args.recipe, threads=1)
    seeds = list(range(args.seeds))
    arms = [arm for arm in Arm if arm is not Arm.WARM]
    names = {(seed, arm): f"seed {seed} {arm}" for seed in seeds for arm in arms}
    with (
        interrupted(lambda: f"{out} keeps what is done; the same command goes on."),
        progress.several(names.values(), recipe.iterations) as show,
    ):

        def update(done: Mapping[tuple[int, Arm], int]) -> None:
            show({name: done[key] for key, name in names.items()})

        result = compare(recipe, seeds, out, args.workers, update)
    table = Table(title=f"success on {recipe.held_out} held-out tasks, {len(seeds)} seeds")
    table.add_column("arm")
    for seed in seeds:
        table.add_column(f"seed {seed}", justify="right")
    table.add_column("mean", justify="right")
    for arm in Arm:
        shares = [f"{figures['success']:.1%}" for figures in result["arms"][arm]]
        table.add_row(arm, *shares, f"{result['mean_success'][arm]:.1%}")
    console.print(table)
    for row in result["differences"]:
        if row["on"] == "success":
            interval = (
                "one seed has no interval"
                if row["low"] is None
                else f"95 % interval {row['low']:+.1%} to {row['high']:+.1%}"
            )
            console.print(f"{row['left']} - {row['right']}: {row['mean']:+.1%} ({interval})")
    console.print(f"wrote {out / 'comparison.json'}", soft_wrap=True)
    emit(result, args.json)
    return 0


def _what_is_kept(out: Path) -> str:
    found = checkpoints_in(out)
    if not found:
        return "There is no checkpoint yet; the same command begins again."
    return (
        f"{out} holds the checkpoint after iteration {found[-1]}; the same command, without "
        "--fresh, goes on from there."
    )


def show_branch(env_config: Any, console: Console) -> None:
    """Play a few commands, then let the oracle play on from there in a second environment."""
    import agent_envs
    from oracles import branch
    from oracles.alfworld_planner import ALFWorldPlanner
    from trainer.worlds.tasks import make_env, open_tasks

    env = make_env(env_config, open_tasks(env_config), env_config.split)
    observation, info = env.reset(seed=0)

    def say(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style=style))

    say("A household task, its first observation and two commands:", "bold")
    say(observation, "dim")
    for command in [c for c in info["admissible_actions"] if c.startswith("go to ")][:2]:
        observation, *_, info = env.step(command)
        say(f"> {command}", "yellow")
        say(observation, "dim")
    say("\nFrom this state the oracle plays on, in an environment of its own:", "bold")
    root = agent_envs.snapshot(env)
    result = branch.run(agent_envs.fork(env), root, ALFWorldPlanner(), None)
    for step in result.steps:
        say(f"> {step.action}", "magenta")
    outcome = "it wins" if result.success else f"it does not win: {', '.join(result.reasons)}"
    untouched = "unchanged" if agent_envs.snapshot(env) == root else "CHANGED"
    say(f"{outcome} in {len(result.steps)} steps; the first environment is {untouched}.")


def _millions(recipe: DemoRecipe) -> str:
    """Parameters of the policy: embedding, attention (4 heads, 2 of them keys), MLP."""
    h = recipe.hidden_size
    layer = 2 * h * h + 2 * h * (h // 2) + 3 * h * 3 * h
    return f"{(recipe.layers * layer + 640 * h) / 1e6:.1f}"
