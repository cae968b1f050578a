"""Is an oracle worth adopting? Measured for one environment and one policy: GO or NO-GO.

The policy plays until enough episodes failed. One state of each is restored in a separate
environment, and the oracle plays on from there. GO needs every restore exact, an oracle that is
better than the policy, and an overhead of at most 25 % of an iteration of training. For a trained
run its model is measured as well. Writes DIR/oracle.json and DIR/report.html. Exit code 0: GO,
1: NO-GO, 2: nothing could be measured. What the figures mean: docs/adoption.md.
"""

from __future__ import annotations

import json
import os
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agent_envs.errors import SeroError
from trainer.cli.common import emit, printable, unset

if TYPE_CHECKING:
    from oracles.bench import IterationCosts, Measured
    from trainer.worlds.sources import Source

UNUSABLE = 2
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bench oracle`."""

    env: Annotated[str | None, unset("ENV")] = None
    """Environment: `alfworld`, `webshop`, a registered id, or `module:name`, a function without
    arguments that makes one (default: alfworld, or the run's)."""
    policy: str = "random"
    """`random` or `first` among the admissible commands, the folder of a trained run, or
    `module:name`, a function from (observation, info) to a command."""
    oracle: str = "planner"
    """One of the environment's own (`planner`: its first), or `module:factory`."""
    roots: int = 256
    """States from which the oracle takes over, one of each failed episode."""
    seed: int = 0
    """Of the tasks, the policy's draws, the states, and the interval of the gap."""
    data: Annotated[str | None, unset("DATA")] = None
    """As for `sero play`; a trained run has its own (default: what is found, else generated)."""
    split: Annotated[str | None, unset("SPLIT")] = None
    """Whose tasks are played (default: train, or the run's)."""
    max_steps: Annotated[int | None, unset("N")] = None
    """Steps in an episode (default: the environment's, or the run's)."""
    target: Literal["success", "score", "reward"] = "success"
    """By what oracle and policy are compared: success, the task's graded score, or the sum of
    rewards."""
    return_scale: float = 1.0
    """The difference of returns that counts as full: what a win is worth by --target."""
    iteration_s: float = 60.0
    """Seconds that an iteration of training takes, 16 x 8 episodes and the update, where there is
    no model to measure. A trained run is measured."""
    from_reset: int = 32
    """Tasks that the oracle also plays from their start."""
    decision_s: float = 120.0
    """Seconds that one answer of the oracle may take. One that takes longer counts as `timeout`;
    after 5 of them in a row the oracle is not asked any more."""
    sweep: bool = False
    """Also train the run with several weights of the auxiliary loss; hours, not minutes."""
    sweep_iterations: int = 20
    """Iterations of each training."""
    sweep_seeds: tuple[int, ...] = (0,)
    """Seeds of each weight."""
    out: Path = Path("bench/oracle")
    """Folder for oracle.json and report.html."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Measure, print, write; 0 for GO, 1 for NO-GO, 2 if nothing could be measured."""
    try:
        return _run(args)
    except (SeroError, ModuleNotFoundError, BrokenPipeError):
        raise  # the command line has words for them
    except Exception:
        traceback.print_exc()
        return UNUSABLE  # Python's own exit code is that of NO-GO


def _run(args: Args) -> int:
    from oracles.bench import measure, overhead, to_json, verdict
    from oracles.leak_audit import audit
    from trainer.oracle_bench import report  # missing packages are said before anything is played
    from trainer.runs.outputs import write_text
    from trainer.worlds.sources import of_somebody, resolve

    _check(args)
    # Somebody's code may go to another folder.
    args = replace(args, out=Path(os.path.abspath(args.out)))
    options = {name: getattr(args, name) for name in ("data", "split", "max_steps")}
    source = resolve(
        env=args.env, policy=args.policy, oracle=args.oracle, seed=args.seed, options=options
    )
    if args.sweep and source.trained is None:
        raise SeroError("--sweep trains the model of --policy: name the folder of a trained run.")
    _check_out(args.out)
    with _progress() as tell, of_somebody(source.recipe):
        measured = measure(
            source.recipe,
            source.played,
            source.make_oracle,
            roots=args.roots,
            seed=args.seed,
            target=args.target,
            return_scale=args.return_scale,
            from_reset=args.from_reset,
            decision_s=args.decision_s,
            on_progress=tell,
        )
        branches = [probe.branch for probe in measured.probes]
        measured = replace(measured, leaks=audit(branches, source.make_oracle.env_id))
        model, iteration, missing = _model(args, source, measured, tell)
    whole = overhead(measured.cost, iteration)
    result = to_json(
        measured,
        whole,
        verdict(measured.restore, measured.gate, whole),
        env=source.recipe.env_id,
        policy=source.policy,
        oracle=source.oracle,
        **model,
    )
    result["not_measured"] = missing
    text = json.dumps(result, indent=1, ensure_ascii=True, allow_nan=False)
    write_text(args.out / "oracle.json", text + "\n")
    report.write_report(result, args.out / "report.html")
    _print(result, args.out)
    emit(result, args.json)
    return 0 if result["verdict"] == "GO" else 1


def _check(args: Args) -> None:
    for name, least in (("roots", 1), ("seed", 0), ("from_reset", 0), ("sweep_iterations", 1)):
        if getattr(args, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise SeroError(f"{flag} {getattr(args, name)}: expected {least} or more.")
    for name in ("iteration_s", "return_scale", "decision_s"):
        if not 0 < getattr(args, name) < float("inf"):
            flag = f"--{name.replace('_', '-')}"
            raise SeroError(f"{flag} {getattr(args, name)}: expected a number above 0.")


def _check_out(out: Path) -> None:
    from trainer.runs.outputs import ready_folder

    ready_folder(out, "--out")
    for name in ("oracle.json", "report.html"):
        if (out / name).is_dir():
            raise SeroError(f"--out {out}: its {name} is a folder. Name another one.")


def _model(
    args: Args, source: Source, measured: Measured, tell: Tell
) -> tuple[dict[str, Any], IterationCosts, dict[str, str]]:
    """What a trained policy adds, what an iteration takes, and why figures are missing."""
    from oracles.bench import IterationCosts

    trained = source.trained
    if trained is None:
        missing = dict.fromkeys(("reach", "scale", "format_drift"), "the policy has no model")
        return {}, IterationCosts(args.iteration_s, "assumed"), missing
    from trainer.oracle_bench.model import model_figures, section_of

    parts = {"reach": 1, "scale": 2, "format": 3}
    found = model_figures(
        trained,
        measured.probes,
        seed=args.seed,
        target=args.target,
        return_scale=args.return_scale,
        on_part=lambda part: tell("model", parts.get(part, 0), len(parts)),
    )
    swept = None
    if args.sweep:
        from trainer.oracle_bench.sweep import ARM_WEIGHTS, sweep

        total = len(ARM_WEIGHTS) * len(args.sweep_seeds) * args.sweep_iterations
        done = 0

        def trained_once(weight: float, seed: int, metrics: object) -> None:
            nonlocal done
            done += 1
            tell("training iterations", done, total)

        section = section_of(trained.config, args.target, args.return_scale, trained=True)
        swept = sweep(
            Path(args.policy),
            args.out / "sweep",
            section=replace(section, oracle=source.oracle),
            iterations=args.sweep_iterations,
            seeds=args.sweep_seeds,
            split=trained.split,
            on_iteration=trained_once,
        )
    figures = {
        "reach": found.reach,
        "scale": found.scale,
        "drift": found.format,
        "sweep": swept,
    }
    names = {"format": "format_drift"}
    missing = {names.get(part, part): why for part, why in found.reasons.items()}
    return figures, found.iteration, missing


# ------------------------------------------------------------------------------ what is shown


@contextmanager
def _progress() -> Iterator[Tell]:
    """Bars in a terminal, a line for each part that begins elsewhere; on standard error."""
    from trainer.cli.progress import bars

    progress = bars()
    if not progress.console.is_terminal:
        begun: set[str] = set()

        def line(what: str, done: int, of: int) -> None:
            if what not in begun:
                begun.add(what)
                progress.console.print(f"{what} ({of})")

        yield line
        return
    with progress:
        tasks: dict[str, Any] = {}

        def bar(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=of, note="")
            progress.update(tasks[what], completed=done)

        yield bar


def _print(result: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    from trainer.oracle_bench.explained import sections

    console = Console(highlight=False, markup=False, emoji=False)
    # Sentences are broken for a person's terminal and stay whole in a file.
    width = console.width - 1 if console.is_terminal else 10**6

    def say(text: str, style: str = "", left: int = 0) -> None:
        for part in printable(text).split("\n"):
            margin = " " * left
            line = textwrap.fill(part, width, initial_indent=margin, subsequent_indent=margin)
            console.print(Text(line, style=style), soft_wrap=True)

    names = f"{result['oracle']} on {result['env']}, policy {result['policy']}"
    say(f"{names}, {result['roots']} states", "bold")
    for section in sections(result):
        say(f"\n{section.title}: {section.question}", "bold")
        for figure in section.figures:
            say(f"{figure.name}: {figure.value}", left=2)
            say(figure.meaning, "dim", left=4)
    say(f"\n{out / 'report.html'}, {out / 'oracle.json'}", "dim")
    say(f"\n{result['verdict']}", "bold green" if result["verdict"] == "GO" else "bold red")
    for reason in result["reasons"]:
        say(reason, left=2)
