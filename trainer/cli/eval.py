"""Evaluate a policy on held-out tasks, each played exactly once.

What is evaluated: the run folder of `sero train` or `sero demo`, a folder with a chat model, or
with `--endpoint URL --model NAME` a model behind an OpenAI-compatible address. How it is prompted:
`--method plain` (the training prompt), `react` (worked examples and a growing transcript) or
`reflexion` (react with notes after failed trials).

Writes one result file a split, with a text summary beside it: for a run into its folder
eval/later/, apart from those of training, which the report and the comparison read; else into the
folder of `--out`. What differs from the run's own settings (suite, method, tasks, temperature,
seeds, and a hash over the rest) is in the file's name; a result of the same policy measured on the
same is replaced, no other.

With `--against FILE` the result is compared with an earlier one, task by task: wins of each, and
the paired difference with its 95 % interval. `--compare A B` compares two files, playing nothing.
Results that were measured on other tasks, prompts or settings are refused (exit code 2), before
anything is played, unless `--force`, which says what differs and compares the tasks that both
played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, mean_score, printable, unset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

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
    """Checkpoint of a run; 0: the policy that training started from (default: the last)."""
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
    compare: Annotated[tuple[Path, Path] | None, unset("EARLIER LATER")] = None
    """Two result files to compare; nothing is played."""
    force: bool = False
    """Compare although the results were not measured on the same thing."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Evaluate, write, print; 0 once every task was played."""
    from rich.console import Console

    from trainer.cli.eval_compare import compare, read_result
    from trainer.evaluation.agreement import check_comparable
    from trainer.evaluation.naming import result_path
    from trainer.evaluation.prepared import expected as expect
    from trainer.evaluation.prepared import prepare
    from trainer.evaluation.run import Plan, play_prepared
    from trainer.evaluation.show import summary
    from trainer.evaluation.suites import SUITES
    from trainer.runs.outputs import write_text

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
    console = Console(highlight=False, soft_wrap=True)
    if args.compare is not None:
        return _compare_files(args, console)
    earlier = read_result(args.against, "--against") if args.against is not None else None
    figures: dict[str, Any] = {}
    subject = _subject(args)
    try:
        ready = prepare(subject, plan)
        expected = {split: expect(ready, split) for split in ready.ids}
        if earlier is not None:
            if earlier["split"] not in expected:
                raise SeroError(
                    f"--against {args.against} is of split {earlier['split']!r}, to be evaluated "
                    f"are {', '.join(expected)}: nothing to compare."
                )
            if not args.force:
                check_comparable(earlier, expected[earlier["split"]])
        folder = _folder(args, subject)
        paths = {
            split: result_path(folder, ready, split, told, _given(args))
            for split, told in expected.items()
        }

        def keep(split: str, result: dict[str, Any]) -> None:
            """Shows and writes at once: the next split may fail, or the disk be full."""
            path = paths[split]
            _show(console, result)
            write_text(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
            write_text(path.with_suffix(".txt"), summary(result))
            figures[split] = {key: result.get(key) for key in _FIGURES} | {"file": str(path)}
            print(f"  written: {path}", flush=True)
            if earlier is not None and earlier["split"] == split:
                compared = compare(earlier, result, force=args.force)
                figures[split]["against"] = {"file": str(args.against), **compared}

        with _ready(folder):
            play_prepared(ready, keep)
    finally:
        subject.close()
    emit(figures, args.json)
    return 0


def _show(console: Console, result: Mapping[str, Any]) -> None:
    from trainer.evaluation.show import headline, notes, table

    print(f"{headline(result)}{mean_score(result)}")
    console.print(table(result))
    print("\n".join(f"  {printable(line)}" for line in notes(result)))


def _compare_files(args: Args, console: Console) -> int:
    """Compares two result files."""
    from trainer.cli.eval_compare import compare, read_result
    from trainer.evaluation.show import headline

    assert args.compare is not None
    others = [args.target, args.endpoint, args.model, args.against, args.out, args.suite, args.env]
    if args.split or any(value is not None for value in others):
        raise SeroError("--compare plays nothing: give two result files, and --force at most.")
    earlier, later = (read_result(path, "--compare") for path in args.compare)
    for path, result in zip(args.compare, (earlier, later), strict=True):
        print(f"{path}: {printable(headline(result))}")
    compared = compare(earlier, later, force=args.force)
    emit({"files": [str(path) for path in args.compare], **compared}, args.json)
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

    given = _given(args)
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


def _given(args: Args) -> dict[str, Any]:
    """How to prompt what is no run, as far as it was said."""
    prompting = {
        "env": args.env,
        "template": args.template,
        "history_length": args.history_length,
        "max_new_tokens": args.max_new_tokens,
    }
    return {name: value for name, value in prompting.items() if value is not None}


def _folder(args: Args, subject: Subject) -> Path:
    """Where the results go."""
    if args.out is not None:
        return args.out
    if subject.iteration is None:
        return Path("sero-eval")
    from trainer.runs.folder import RunFolder

    assert args.target is not None
    return RunFolder(args.target).evaluation(subject.iteration, "").parent / "later"


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
