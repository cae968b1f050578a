"""The `sero` command: finds the module of a command and runs it.

Modules are imported by the first words only, so a command that needs no torch runs where torch is
not installed. A command module has a frozen dataclass `Args`, a docstring that is its help text,
and `run(args) -> int`, the exit code: 0 if and only if what it checks holds.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from agent_envs.errors import SeroError

EXIT_FAILED = 1
"""The command ran, and what it checks does not hold."""
EXIT_UNUSABLE = 2
"""The command could not run: wrong arguments, missing data, missing package."""


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives and the line that `sero --help` prints for it."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command("demo", "branch an oracle, train a tiny policy, write a report"),
    "play": Command("play", "play an environment in the terminal"),
    "site": Command("site", "serve the shop as a web site"),
    "train": Command("train", "train from a config file"),
    "eval": Command("eval", "evaluate a run, a chat model or a server"),
    "verify alfworld": Command("verify_alfworld", "replay transcripts of the original engine"),
    "verify webshop": Command("verify_webshop", "replay transcripts of the original WebShop"),
    "verify objectives": Command("verify_objectives", "check objectives against numeric vectors"),
    "objectives": Command("objectives", "list the objectives: what each needs and costs"),
    "bank build": Command("bank_build", "collect branches of an oracle in a file"),
    "bank verify": Command("bank_verify", "run the branches of such a file again"),
    "bank replay": Command("bank_replay", "train a policy on them under several weight rules"),
    "bench alfworld": Command("bench_alfworld", "speed beside the original engine, in one run"),
    "bench webshop": Command("bench_webshop", "the same for WebShop, beside a checkout of it"),
    "bench train": Command("bench_train", "speed of training beside TRL's, and SERO's cost"),
    "bench oracle": Command(
        "bench_oracle", "is an oracle worth adopting for an environment and a policy: GO or NO-GO"
    ),
    "data status": Command(
        "data_status", "which games and products are there, what is skipped and why"
    ),
    "data fetch": Command("data_fetch", "get ALFWorld's own games"),
    "data import": Command("data_import", "convert WebShop's original files to a store"),
    "data generate": Command("data_generate", "write generated households or shops as files"),
    "data export": Command("data_export", "write an oracle's demonstrations as chat data"),
}

# Distributions that an extra of ours brings, by the name of the module that fails to import.
_EXTRA_OF = {
    **dict.fromkeys(
        ("torch", "transformers", "tokenizers", "safetensors", "yaml", "matplotlib", "pyarrow"),
        "train",
    ),
    **dict.fromkeys(("textworld", "alfworld", "tatsu", "fast_downward"), "reference"),
}


def usage() -> str:
    """The text of `sero --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: sero COMMAND [options]",
            "",
            *lines,
            "",
            "`sero COMMAND --help` explains a command. `--json` prints its figures as one JSON",
            "object on the last line. Exit code 0: what the command checks holds.",
        ]
    )


def find_command(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Split `words` into the name of a command (one or two words) and its own arguments."""
    for size in (2, 1):
        name = " ".join(words[:size])
        if len(words) >= size and name in COMMANDS:
            return name, words[size:]
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's arguments) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else EXIT_UNUSABLE
    if words[0] in ("-V", "--version"):
        print(f"sero {_version()}")
        return 0
    found = find_command(words)
    if found is None:
        return _unknown(words)
    name, rest = found
    # Libraries' own bars would break up ours; read when they are imported, also by children.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        module = importlib.import_module(f"trainer.cli.{COMMANDS[name].module}")
        return _run(module, name, rest)
    except SeroError as error:
        return _unusable(str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _unusable(
            f"`sero {name}` needs the package {error.name!r}, which is not installed. "
            f"It comes with the extra {extra!r}: pip install '.[{extra}]' in a checkout of sero"
        )
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `sero ... | head` closes our output early; that is no failure worth a traceback.
        sys.stderr.close()
        return EXIT_FAILED


def _run(module: object, name: str, rest: Sequence[str]) -> int:
    from trainer.cli import common

    parse = getattr(module, "parse", None)
    args = parse(rest) if parse else common.parse_args(module, f"sero {name}", rest)
    return int(module.run(args))  # type: ignore[attr-defined]


def _version() -> str:
    try:
        return metadata.version("sero-rl")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"


def _unknown(words: Sequence[str]) -> int:
    wanted = " ".join(words[:2])
    group = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if group:
        hint = "Known: " + ", ".join(f"`sero {name}`" for name in group) + "."
        if len(words) == 1 or words[1] in ("-h", "--help"):
            print("\n".join(f"sero {name:<18} {COMMANDS[name].summary}" for name in group))
            return 0 if len(words) > 1 else EXIT_UNUSABLE
    else:
        near = difflib.get_close_matches(words[0], [n.split()[0] for n in COMMANDS], 1, 0.5)
        hint = f"Did you mean `sero {near[0]}`?" if near else "`sero --help` lists the commands."
        wanted = words[0]
    return _unusable(f"there is no command `sero {wanted}`. {hint}")


def _unusable(message: str) -> int:
    from trainer.cli.common import printable

    print(f"sero: {printable(message)}", file=sys.stderr)
    return EXIT_UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
