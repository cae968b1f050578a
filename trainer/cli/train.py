"""Train from a config file; any field can be set as --section.key VALUE.

    sero train examples/tiny_sero.yaml --out runs/first --run.seed 1

Unknown keys are refused. The run folder gets the resolved config, metrics.jsonl, checkpoints,
evaluations and report.html. `--resume` continues a run from its last checkpoint, as if there had
been no break; `--resume-from N` from an earlier one, and moves what came after it to aside/. Both
take the run's folder in place of a config, whose settings are those of its run.json:

    sero train runs/first --resume

Ctrl-C, SIGTERM and SIGHUP end a run in order: what it opened is closed, status.json says
`interrupted`, and the exit code is 128 and the signal's number (130, 143, 129).

`--plan` starts nothing: it says what the run would take (tokens, memory, time, disk), whether it
fits the device, and what to turn where it does not. Exit code 1: it does not fit.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainer.cli.common import checkpoints_in, emit, interrupted, mean_score, unset

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.runs.signals import Ending

_FIGURES = ("n", "wins", "success", "interval_95", "score")


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero train`; whatever else is given overrides the config."""

    config: Annotated[Path | None, tyro.conf.Positional, unset("CONFIG")] = None
    """YAML file, e.g. of examples/ (see docs/training.md); with --resume also the run's folder."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Run folder (default: runs/NAME, after the config file)."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    resume_from: Annotated[int | None, unset("N")] = None
    """Continue the run in --out from its checkpoint after N iterations."""
    json: bool = False
    """Print the outcome as one JSON object on the last line."""
    plan: bool = False
    """Say what the run would take, and start nothing; the options below are for this alone."""
    shape: Annotated[str | None, unset("NAME")] = None
    """Sizes of the policy: qwen2.5-1.5b, qwen2.5-7b or smollm2-135m (default: the config's)."""
    device: Annotated[str | None, unset("NAME")] = None
    """GPU to plan for, e.g. 'NVIDIA H200' (default: run.device of this machine)."""
    device_memory_gb: Annotated[float | None, unset("GB")] = None
    """Its memory in 10^9 bytes (default: what run.device has)."""
    turns: Annotated[int | None, unset("N")] = None
    """Turns of an episode (default: env.max_steps)."""
    prompt_tokens: Annotated[int | None, unset("N")] = None
    """Tokens of a prompt (default: prompt.max_prompt_tokens)."""
    reply_tokens: Annotated[int | None, unset("N")] = None
    """Tokens of a reply (default: rollout.max_new_tokens)."""
    processes: Annotated[int | None, unset("N")] = None
    """Processes that share the run, each with a device (default: 1); needs parallel.mode."""


_PLANNED = ("shape", "device", "device_memory_gb", "turns", "prompt_tokens", "reply_tokens",
            "processes")  # fmt: skip


def parse(words: Sequence[str]) -> tuple[Args, list[str]]:
    """Our own options, and the words that override the config."""
    overrides, own = _split(words)
    args, rest = tyro.cli(
        Args,
        prog="sero train",
        args=own,
        description=__doc__,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return args, [*overrides, *rest]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words `--section.key VALUE`, and the others; else a value could pass for CONFIG."""
    overrides: list[str] = []
    own: list[str] = []
    waiting = False
    for word in words:
        option = word.startswith("--")
        name, equals, _ = word.partition("=")
        if option and "." in name:
            overrides.append(word)
            waiting = not equals
        elif waiting and not option:
            overrides.append(word)
            waiting = False
        else:
            own.append(word)
            waiting = False
    return overrides, own


def run(parsed: tuple[Args, list[str]]) -> int:
    """Train; 0 once all iterations and evaluations are done. With `--plan`: 1 where it won't fit.

    Raises:
        PlanError: an option of `--plan` without it, or one that the config excludes.
    """
    from trainer.runs.signals import Ended, ended_in_order

    try:
        with ended_in_order(last=True) as ending:
            return _run(parsed, ending)
    except Ended as ended:
        return ended.code


def _run(parsed: tuple[Args, list[str]], ending: Ending) -> int:
    if parsed[0].plan:
        return _plan(*parsed)
    planned = [name for name in _PLANNED if getattr(parsed[0], name) is not None]
    if planned:
        from trainer.planning.plan import PlanError

        options = ", ".join(f"--{name.replace('_', '-')}" for name in planned)
        raise PlanError(f"{options} is for a plan. Add --plan, or leave it out.")
    from trainer.cli import progress
    from trainer.evaluation.show import overflowing
    from trainer.loop import train
    from trainer.parallel.launch import own_config, own_folder, processes
    from trainer.parallel.run import trainer_of
    from trainer.report import counted, read_run, write_report

    args, rest = parsed
    config, out = _config_and_folder(args, rest)
    warm_steps = config.warmstart.text_steps + config.warmstart.steps
    resumed = args.resume or args.resume_from is not None
    as_given = config.model.path is not None and not config.warmstart.given_model
    if as_given or resumed or not config.warmstart.demonstrations:
        warm_steps = 0
    ways: dict[str, Any] = {"resume": resumed, "resume_from": args.resume_from}
    with processes(config) as group, own_folder(out, group) as place:
        ways["trainer_type"] = trainer_of(group)
        if not group.writes:
            train(own_config(config, group), place, on_iteration=lambda _: ending.check(), **ways)
            return 0
        with (
            interrupted(lambda: _what_is_kept(args, out, rest)),
            progress.training(
                warm_steps, config.run.iterations, config.prompt.max_prompt_tokens
            ) as hooks,
        ):
            for name, hook in hooks.as_arguments().items():
                ways[name] = ending.checked(hook)
            result = train(config, place, **ways)
    figures: dict[str, Any] = {
        "run": str(out),
        "iterations": result.iterations,
        "stop": result.stop,
    }
    for split, evaluation in result.evaluations.items():
        print(f"{split}: {evaluation['wins']} of {evaluation['n']} tasks{mean_score(evaluation)}")
        if warning := overflowing(evaluation):
            print(f"WARNING: {split}: {warning}")
        figures[split] = {key: evaluation[key] for key in _FIGURES}
    names: list[str] = [config.objective.name] if config.base_active else []
    names += [name for name, _ in config.auxiliary.active()]
    trained = f"{counted(result.iterations, 'iteration')} of {' + '.join(names)}"
    lead = f"{trained} from {args.config or out}."
    report = read_run(out, title=out.name, lead=lead)
    if result.stop != "finished":
        print(report.stop)
    for line in (*report.notes, *report.idle):
        print(line)
    print(f"report: {write_report(report, out / 'report.html')}")
    emit(figures, args.json)
    return 0


def _config_and_folder(args: Args, rest: Sequence[str]) -> tuple[Config, Path]:
    """What to train, and where: of a config file, or of a run that goes on.

    Raises:
        ConfigError, RunFolderError: neither, or a run that is not to be resumed.
    """
    from trainer.config import ConfigError, load_config, parse_overrides

    given, overrides = args.config, parse_overrides(rest)
    resumed = args.resume or args.resume_from is not None
    run = given if given is not None and given.is_dir() else None
    if given is not None and given.name == "run.json":
        raise ConfigError(
            f"{given} is the record of a run. To go on with the run: sero train {given.parent} "
            "--resume. To begin another one: its config file, and another --out."
        )
    if run is not None and not resumed:
        raise ConfigError(
            f"{run} is a folder. To go on with a run: sero train {run} --resume. To begin one: "
            "a config file, such as those in examples/."
        )
    if given is None and not (resumed and args.out is not None):
        raise ConfigError(
            "Give a config file, such as those in examples/, or to go on with a run its folder: "
            "sero train RUN --resume."
        )
    if given is not None and run is None:
        return load_config(given, overrides), args.out or Path("runs") / given.stem
    folder = run or args.out
    assert folder is not None
    if args.out is not None and args.out.resolve() != folder.resolve():
        raise ConfigError(f"A run goes on in its own folder, {folder}. Leave out --out {args.out}.")
    from trainer.runs.folder import RunFolder

    made_with = RunFolder(folder).read_config()
    return (made_with.replace(**overrides) if overrides else made_with), folder


def _plan(args: Args, rest: Sequence[str]) -> int:
    """Says what the run would take; nothing is written and no model is made."""
    from trainer.cli import train_plan
    from trainer.config import load_config, parse_overrides
    from trainer.planning.plan import PlanError, load_of, make_plan, shape_for

    if args.resume or args.resume_from is not None or args.out is not None:
        raise PlanError("--plan starts nothing. Leave out --out, --resume and --resume-from.")
    if args.device_memory_gb is not None and not 0 < args.device_memory_gb < math.inf:
        raise PlanError(f"--device-memory-gb {args.device_memory_gb} must be positive.")
    if args.config is None:
        raise PlanError("--plan needs a config file, such as those in examples/.")
    config = load_config(args.config, parse_overrides(rest))
    load = load_of(config, turns=args.turns, prompt=args.prompt_tokens, reply=args.reply_tokens)
    device = train_plan.detect(config, args.device, args.device_memory_gb)
    count = 1 if args.processes is None else args.processes
    plan = make_plan(config, shape_for(config, args.shape), load, device, processes=count)
    print("\n".join(train_plan.lines(plan)))
    emit(train_plan.figures(plan), args.json)
    return 1 if plan.fits is False else 0


def _what_is_kept(args: Args, out: Path, overrides: Sequence[str]) -> str:
    """What a run that was broken off has in its folder, and the command that goes on."""
    words = ["sero", "train", str(args.config), "--out", str(out)]
    if args.config is None or args.config.is_dir():
        words = ["sero", "train", str(out)]
    found = checkpoints_in(out)
    if found:
        command = shlex.join([*words, "--resume", *overrides])
        lost = _run_again(out, found[-1])
        return f"{out} holds the checkpoint after iteration {found[-1]}. {lost}To go on: {command}"
    if (out / "run.json").exists():
        command = shlex.join([*words, "--resume", *overrides])
        return f"There is no checkpoint yet. {_run_again(out, 0)}To begin again: {command}"
    return f"There is no checkpoint yet. To begin again: {shlex.join([*words, *overrides])}"


def _run_again(out: Path, checkpoint: int) -> str:
    """How many finished iterations no checkpoint holds."""
    try:
        done = json.loads((out / "status.json").read_text(encoding="utf-8"))["iterations"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    count = done - checkpoint if isinstance(done, int) else 0
    if count < 1:
        return ""
    what = "The finished iteration" if count == 1 else f"The {count} finished iterations"
    since = f" since iteration {checkpoint}" if checkpoint else ""
    return f"{what}{since} will be run again (see run.checkpoint_every). "
