"""Evaluate a policy on held-out tasks, each played exactly once.

What is evaluated: the run folder of `sero train` or `sero demo`, a folder with a chat model, or
with `--endpoint URL --model NAME` a model behind an OpenAI-compatible address. How it is prompted:
`--method plain` (the training prompt), `react` (worked examples and a growing transcript) or
`reflexion` (react with notes after failed trials).

Writes one result file a split, with a text summary beside it: for a run into its folder
eval/later/, apart from those of training, which the report and the comparison read; else into the
folder of `--out`. A file of the same name is replaced. With `--against FILE` the result is compared
with an earlier one, task by task: wins of each, and the paired difference with its 95 % interval.
Results that were measured on other tasks, prompts or settings are refused (exit code 2) unless
`--force`, which says what differs and compares the tasks that both played.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, mean_score, printable, unset

if TYPE_CHECKING:
    from trainer.evaluation.subjects import Subject


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero eval`."""

    target: Annotated[Path | None, tyro.conf.Positional, unset("FOLDER")] = None
    """Run folder, or a folder with a chat model; none with --endpoint."""
    suite: Annotated[Literal["alfworld", "webshop"] | None, unset("{alfworld,webshop}")] = None
    """A published set in full: 140 + 134 games, or 500 test goals, under its step cap."""
    split: Annotated[tuple[str, ...], unset()] = ()
    """Splits (default: those of the run's config, or what the environment holds out)."""
    tasks: Annotated[int | None, unset("INT")] = None
    """Tasks a split, spread evenly over the sorted ids (default: the config's number, 0: all)."""
    iteration: Annotated[int | None, unset("INT")] = None
    """Checkpoint of a run (default: the last)."""
    best: bool = False
    """Of a run's checkpoints that with the best evaluation (`eval.best_by`)."""
    temperature: Annotated[float | None, unset("FLOAT")] = None
    """0: greedy (default: the config's, which is greedy for a model)."""
    top_p: float = 1.0
    """Nucleus to sample from."""
    seeds: int = 1
    """Sampling seeds; each plays every task. More than 1 needs a temperature above 0."""
    batch_size: Annotated[int | None, unset("INT")] = None
    """Episodes at a time; changes no outcome (default: the config's, or --concurrency)."""
    data: Annotated[str | None, unset("DATA")] = None
    """Other games, or another shop, than those of the run."""
    device: Annotated[str | None, unset("DEVICE")] = None
    """Where to run (default: the config's run.device, or cpu)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights of a model folder."""
    method: Literal["plain", "react", "reflexion"] = "plain"
    """How it is prompted."""
    trials: int = 1
    """Attempts at a task, with reflexion; success if any of them succeeds."""
    list_commands: bool = False
    """react and reflexion also list the possible commands."""
    env: Annotated[str | None, unset("ENV")] = None
    """alfworld or webshop, for what is no run (default: that of --suite, else alfworld)."""
    template: Annotated[str | None, unset("NAME")] = None
    """Prompt template, for what is no run (default: field)."""
    history_length: Annotated[int | None, unset("INT")] = None
    """Past steps that plain shows, for what is no run (default: 2)."""
    max_steps: Annotated[int | None, unset("INT")] = None
    """Commands in an episode (default: the run's, or 50 in alfworld and 15 in webshop)."""
    max_prompt_tokens: Annotated[int | None, unset("INT")] = None
    """A longer prompt ends the episode (default: the run's, 2048 or 4096; react: 16384)."""
    max_new_tokens: Annotated[int | None, unset("INT")] = None
    """Longest reply, for what is no run (default: 512)."""
    endpoint: Annotated[str | None, unset("URL")] = None
    """Address of a server, up to its version: http://127.0.0.1:8000/v1."""
    model: Annotated[str | None, unset("NAME")] = None
    """The server's name of the model."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the server's key; a loopback address is sent none."""
    timeout: float = 120.0
    """Seconds for one attempt at a reply."""
    retries: int = 5
    """Attempts after the first, on status 429 and 5xx and where nothing answers."""
    concurrency: int = 8
    """Requests to the server at once."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Where results go (default: the run's eval/later, else sero-eval/)."""
    against: Annotated[Path | None, unset("FILE")] = None
    """Earlier result file of the same split to compare with."""
    force: bool = False
    """Compare although the results were not measured on the same thing."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Evaluate, write, print; 0 once every task was played."""
    from rich.console import Console

    from trainer.evaluation.run import Plan, evaluate_subject
    from trainer.evaluation.show import headline, notes, summary, table
    from trainer.evaluation.suites import SUITES
    from trainer.runs.info import write_json

    plan = Plan(
        splits=args.split or None,
        tasks=args.tasks,
        temperature=args.temperature,
        top_p=args.top_p,
        seeds=args.seeds,
        batch_size=args.batch_size,
        data=args.data,
        max_steps=args.max_steps,
        max_prompt_tokens=args.max_prompt_tokens,
        suite=None if args.suite is None else SUITES[args.suite],
        method=args.method,
        trials=args.trials,
        list_commands=args.list_commands,
    )
    plan.check()
    earlier = _read(args.against) if args.against is not None else None
    subject = _subject(args)
    try:
        if earlier is not None:
            held_out = subject.config.eval.splits if plan.suite is None else plan.suite.splits
            splits = args.split or tuple(held_out)
            if earlier["split"] not in splits:
                raise SeroError(
                    f"--against {args.against} is of split {earlier['split']!r}, to be evaluated "
                    f"are {', '.join(splits)}: nothing to compare."
                )
        with _ready(_path(args, subject, "").parent):
            results = evaluate_subject(subject, plan)
    finally:
        subject.close()
    figures: dict[str, Any] = {}
    console = Console(highlight=False, soft_wrap=True)
    for split, result in results.items():
        path = _path(args, subject, split)
        write_json(path, result)
        path.with_suffix(".txt").write_text(summary(result), encoding="utf-8")
        figures[split] = {key: result.get(key) for key in _FIGURES} | {"file": str(path)}
        print(f"{headline(result)}{mean_score(result)}")
        console.print(table(result))
        print("\n".join(f"  {printable(line)}" for line in notes(result)))
        if earlier is not None and earlier["split"] == split:
            compared = _compare(args, earlier, result)
            figures[split]["against"] = compared
        print(f"  written: {path}")
    emit(figures, args.json)
    return 0


@contextmanager
def _ready(folder: Path) -> Iterator[None]:
    """Tries the folder of the results before the block, so that nothing is played in vain.

    Raises:
        OutputError: it cannot be written.
    """
    from trainer.runs.outputs import ready_folder

    there = folder.exists()
    ready_folder(folder, "--out")
    try:
        yield
    except BaseException:
        if not there:
            with suppress(OSError):
                folder.rmdir()
        raise


def _subject(args: Args) -> Subject:
    from trainer.evaluation.subjects import (
        PromptOptions,
        is_model_folder,
        open_endpoint,
        open_model,
        open_run,
    )

    prompting: dict[str, Any] = {
        "env": args.env,
        "template": args.template,
        "history_length": args.history_length,
        "max_new_tokens": args.max_new_tokens,
    }
    given = {name: value for name, value in prompting.items() if value is not None}
    if args.endpoint is None and args.model is not None:
        raise SeroError("--model names a model behind --endpoint, and there is none.")
    if args.endpoint is not None:
        if args.target is not None or args.model is None:
            raise SeroError("--endpoint needs --model NAME, and no folder.")
    elif args.target is None:
        raise SeroError("Give a run folder, a folder with a chat model, or --endpoint and --model.")
    elif not is_model_folder(args.target):
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SeroError(
                f"{args.target} is evaluated as the run that it is: leave out {flags}, which are "
                "for a model folder or an endpoint."
            )
        from trainer.runs.folder import RunFolder
        from trainer.runs.status import best_iteration

        if args.best and args.iteration is not None:
            raise SeroError("--best and --iteration both choose a checkpoint. Leave one out.")
        chosen = best_iteration(RunFolder(args.target)) if args.best else args.iteration
        return open_run(args.target, chosen, args.device)
    if args.best or args.iteration is not None:
        name = "--best" if args.best else "--iteration"
        raise SeroError(f"{name} is for run folders, which have checkpoints.")
    given.setdefault("env", args.suite or "alfworld")
    limits: dict[str, Any] = {
        "max_steps": args.max_steps,
        "max_prompt_tokens": args.max_prompt_tokens,
    }
    options = PromptOptions(**given, **limits)
    if args.endpoint is not None:
        from trainer.baselines.endpoint import EndpointSettings

        assert args.model is not None
        settings = EndpointSettings(
            args.endpoint,
            args.model,
            key_variable=args.key_variable,
            timeout_s=args.timeout,
            retries=args.retries,
            concurrency=args.concurrency,
        )
        return open_endpoint(settings, options)
    assert args.target is not None
    return open_model(args.target, options, args.device, args.dtype)


def _path(args: Args, subject: Subject, split: str) -> Path:
    """The result file of a split."""
    method = "" if args.method == "plain" else f"_{args.method}"
    if subject.iteration is None:
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", subject.name).strip(".-") or "model"
        return (args.out or Path("sero-eval")) / f"{name}{method}_{split}.json"
    from trainer.runs.folder import RunFolder

    assert args.target is not None
    path = RunFolder(args.target).evaluation(subject.iteration, split)
    folder = path.parent / "later" if args.out is None else args.out
    return folder / f"{path.stem}{method}.json"


def _compare(args: Args, earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    from trainer.evaluation.agreement import differences, version_differences
    from trainer.evaluation.evaluate import check_comparable, compare_outcomes

    different = differences(earlier, result)
    if different and not args.force:
        check_comparable(earlier, result)
    for name, (before, now) in different.items():
        print(f"  WARNING: NOT MEASURED ON THE SAME THING: {name} was {before!r}, is {now!r}")
    for name, (before, now) in version_differences(earlier, result).items():
        print(f"  note: {name} was {before}, is {now}")
    compared = compare_outcomes(earlier, result)
    print("\n".join(f"  {line}" for line in _compared(compared)))
    return {"file": str(args.against), "differs_in": list(different), **compared}


def _compared(c: Mapping[str, Any]) -> list[str]:
    if c["low"] is not None:
        interval = f"95 % interval {_points(c['low'])} to {_points(c['high'])} points"
    elif c["gained"] + c["lost"]:
        interval = "one task has no interval"
    else:
        interval = "no task changed, so there is no interval"
    return [
        f"on {c['tasks']} tasks before: {_count(c['wins_before'])}, now: {_count(c['wins'])} "
        f"({c['gained']} solved only now, {c['lost']} only before)",
        f"difference: {_points(c['difference'])} percentage points ({interval})",
    ]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _count(wins: float) -> str:
    return str(wins) if isinstance(wins, int) else f"{wins:.2f}"


_FIGURES = (
    "n",
    "wins",
    "success",
    "interval_95",
    "macro_success",
    "score",
    "score_interval_95",
    "mean_steps",
    "stop_reasons",
    "admissible_share",
    "invalid_format_share",
    "over_seeds",
    "method",
    "trials",
    "iteration",
    "tasks_hash",
    "manifest_hash",
    "prompt_hash",
    "model",
)


def _read(path: Path) -> Mapping[str, Any]:
    from trainer.evaluation.evaluate import compare_outcomes

    try:
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        result["split"], result["wins"], result["n"], result["success"]
        compare_outcomes(result, result)  # now, and not when all tasks have been played
    except OSError as error:
        raise SeroError(f"--against {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SeroError(f"--against {path} is no evaluation result: {error!r}.") from error
    return result
