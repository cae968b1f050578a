"""Measure training: an iteration beside TRL's, kept conversations, and the cost of SERO.

TRL's GRPO trainer runs in a process of its own on the same policy of 9 million parameters, the same
prompts and lengths, in the fastest of the generation settings that it has on a CPU. It comes with
the extra `peer`; --peer names another interpreter that has it. Without it the command says so and
gives the rest. Takes about ten minutes on two slow cores. Exit code 1 when a threshold is missed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from trainer.cli.common import emit, machine, unset, versions


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero bench train`."""

    peer: Annotated[str | None, unset("PYTHON")] = None
    """The Python interpreter that has TRL (default: this one)."""
    repeats: Annotated[int | None, unset("N")] = None
    """Iterations of each side that count (default: 3)."""
    new_tokens: Annotated[int | None, unset("N")] = None
    """Length of every reply (default: 64)."""
    threads: int = 1
    """Threads of torch, on both sides."""
    seed: int = 0
    """Seed of weights, games and draws."""
    quick: bool = False
    """Run everything once, too small for its figures to mean anything; no threshold counts."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


PACKAGES = ("torch", "transformers", "tokenizers")
"""What the figures depend on beside our own versions."""


def run(args: Args) -> int:
    """Measure and print; 0 if every threshold is reached."""
    from trainer.bench import train

    console = Console(highlight=False, markup=False, emoji=False)
    status = Console(stderr=True, highlight=False, markup=False, emoji=False)
    plan = replace(
        train.QUICK if args.quick else train.Plan(), threads=args.threads, seed=args.seed
    )
    if args.repeats is not None:
        plan = replace(plan, repeats=args.repeats)
    if args.new_tokens is not None:
        plan = replace(plan, new_tokens=args.new_tokens)
    result = train.measure(plan, lambda line: status.print(line, soft_wrap=True), args.peer)
    result["machine"] = machine() | versions(PACKAGES)
    result["thresholds"] = {**train.AT_LEAST, **train.BELOW}
    result["missed"] = [] if args.quick else train.missed(result)
    _print(console, result)
    emit(result, args.json)
    return 1 if result["missed"] else 0


def _print(console: Console, result: dict[str, Any]) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True)

    plan, ours, trl, sero = (result[name] for name in ("plan", "ours", "trl", "sero"))
    table = Table(
        title=f"{result['parameters']:,} parameters, {plan['prompts']} prompts x "
        f"{plan['rollouts']} replies of {plan['new_tokens']} tokens"
    )
    table.add_column("one iteration")
    for column in ("ours", "TRL"):
        table.add_column(column, justify="right")
    rows = (
        ("tokens/s, end to end", "tokens_per_s", "{:,.0f}"),
        ("tokens/s, sampled", "rollout_tokens_per_s", "{:,.0f}"),
        ("seconds", "seconds", "{:.2f}"),
        ("seconds of sampling", "rollout_s", "{:.2f}"),
        ("seconds of processor time", "cpu_s", "{:.2f}"),
    )
    for label, name, shown in rows:
        table.add_row(label, shown.format(ours[name]), shown.format(trl[name]) if trl else "-")
    console.print(table)
    if trl:
        low, high = result["ratio_trl_spread"]
        say(
            f"{result['ratio_trl']:.2f} times TRL's tokens per second ({low:.2f} to {high:.2f} in "
            f"pairs, {result['ratio_trl_cpu']:.2f} in processor time), TRL {trl['versions']['trl']}"
            f" with: {result['trl_setting']}."
        )
        for name, found in result["trl_tried"].items():
            said = f"{found['seconds']:.2f} s" if "seconds" in found else found["refused"]
            say(f"  tried: {name}: {said}")
    else:
        say(result["trl_missing"])
    low, high = result["ratio_chat_spread"]
    say(
        f"Conversations with kept keys and values: {result['ratio_chat']:.2f} times as fast as "
        f"read anew ({low:.2f} to {high:.2f})."
    )
    low, high = result["sero_share_spread"]
    say(
        f"SERO: {result['sero_share']:.1%} of an iteration ({low:.1%} to {high:.1%}) with "
        f"{sero['trajectories']} trajectories, {sero['turns']} turns, {sero['roots']} roots, "
        f"{sero['rows_trained']} rows, {sero['parameters']:,} parameters:"
    )
    parts = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in sero["phases"].items())
    say(f"  {parts}")
    say(", ".join(f"{k} {v}" for k, v in result["machine"].items()))
    for reason in result["missed"]:
        say(f"MISSED: {reason}", style="bold red")
