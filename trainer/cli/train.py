"""Train from a config file; any field can be set as --section.key VALUE.

    sero train examples/tiny_sero.yaml --out runs/first --run.seed 1

Unknown keys are refused. The run folder gets the resolved config, metrics.jsonl, checkpoints,
evaluations and report.html. `--resume` continues a run from its last checkpoint, as if there had
been no break; `--resume-from N` from an earlier one, and moves what came after it to aside/.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from trainer.cli.common import checkpoints_in, emit, interrupted, mean_score, unset

_FIGURES = ("n", "wins", "success", "interval_95", "score")


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero train`; whatever else is given overrides the config."""

    config: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """YAML file, e.g. one of examples/ (see docs/training.md)."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Run folder (default: runs/NAME, after the config file)."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    resume_from: Annotated[int | None, unset("N")] = None
    """Continue the run in --out from its checkpoint after N iterations."""
    json: bool = False
    """Print the outcome as one JSON object on the last line."""


def parse(words: Sequence[str]) -> tuple[Args, list[str]]:
    """Our own options, and the words that override the config."""
    args, rest = tyro.cli(
        Args,
        prog="sero train",
        args=list(words),
        description=__doc__,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return args, rest


def run(parsed: tuple[Args, list[str]]) -> int:
    """Train; 0 once all iterations and evaluations are done."""
    from trainer.cli import progress
    from trainer.config import load_config, parse_overrides
    from trainer.loop import train
    from trainer.report import counted, read_run, write_report

    args, rest = parsed
    config = load_config(args.config, parse_overrides(rest))
    out = args.out or Path("runs") / args.config.stem
    warm_steps = config.warmstart.text_steps + config.warmstart.steps
    resumed = args.resume or args.resume_from is not None
    if config.model.path is not None or resumed or not config.warmstart.demonstrations:
        warm_steps = 0
    with (
        interrupted(lambda: _what_is_kept(args.config, out, rest)),
        progress.training(warm_steps, config.run.iterations) as hooks,
    ):
        result = train(
            config, out, resume=resumed, resume_from=args.resume_from, **hooks.as_arguments()
        )
    figures: dict[str, Any] = {"run": str(out), "iterations": result.iterations}
    for split, evaluation in result.evaluations.items():
        print(f"{split}: {evaluation['wins']} of {evaluation['n']} tasks{mean_score(evaluation)}")
        figures[split] = {key: evaluation[key] for key in _FIGURES}
    names: list[str] = [config.objective.name] if config.base_active else []
    names += [name for name, _ in config.auxiliary.active()]
    lead = f"{counted(result.iterations, 'iteration')} of {' + '.join(names)} from {args.config}."
    report = read_run(out, title=out.name, lead=lead)
    for line in report.idle:
        print(line)
    print(f"report: {write_report(report, out / 'report.html')}")
    emit(figures, args.json)
    return 0


def _what_is_kept(config: Path, out: Path, overrides: Sequence[str]) -> str:
    """What a run that was broken off has in its folder, and the command that goes on."""
    words = ["sero", "train", str(config), "--out", str(out)]
    found = checkpoints_in(out)
    if found:
        command = shlex.join([*words, "--resume", *overrides])
        return f"{out} holds the checkpoint after iteration {found[-1]}. To go on: {command}"
    if (out / "run.json").exists():
        return f"There is no checkpoint yet. To begin again, remove {out} or choose another --out."
    return f"There is no checkpoint yet. To begin again: {shlex.join([*words, *overrides])}"
