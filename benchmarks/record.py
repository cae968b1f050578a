"""Keeps the figures of a benchmark in benchmarks/results/, with the commit they were taken at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def commit() -> str:
    """The commit of this checkout, with `+changes` where tracked files differ from it."""

    def git(*words: str) -> str:
        out = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
        return out.stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)benchmarks/results"
    )
    return (git("rev-parse", "HEAD") or "unknown") + ("+changes" if changed else "")


def write(name: str, figures: Mapping[str, Any]) -> None:
    """Write `figures` and the commit to results/`name`.json."""
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**figures, "commit": commit()}, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def run_sero(words: Sequence[str]) -> tuple[int, dict[str, Any] | None]:
    """Run `sero WORDS --json`, show what it prints; its exit code and the figures it printed."""
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.cli.main", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                print(line, end="", flush=True)
            last = line
    return process.returncode, json.loads(last) if last.startswith("{") else None
