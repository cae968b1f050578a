"""`sero eval --against FILE` and `--compare A B`: reading results, and what differs in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_envs.errors import SeroError
from trainer.cli.common import printable

__all__ = ["compare", "read_result"]


def compare(
    earlier: Mapping[str, Any], later: Mapping[str, Any], *, force: bool = False
) -> dict[str, Any]:
    """Prints how two results differ task by task; returns the figures.

    Args:
        force: compare what was not measured on the same thing, and say so.

    Raises:
        Incomparable: they were not, without `force`; or no task is in both.
    """
    from trainer.evaluation.agreement import (
        check_comparable,
        compare_outcomes,
        label,
        told,
        version_differences,
    )

    different = told(earlier, later)
    if not force:
        check_comparable(earlier, later)
    for name, words in different.items():
        print(f"  WARNING: NOT MEASURED ON THE SAME THING: {label(name)}: {printable(words)}")
    for name, (before, now) in version_differences(earlier, later).items():
        print(f"  note: {name} was {before}, is {now}")
    compared = compare_outcomes(earlier, later)
    print("\n".join(f"  {line}" for line in _lines(compared)))
    return {"differs_in": list(different), **compared}


def read_result(path: Path, option: str) -> Mapping[str, Any]:
    """An evaluation's result file, checked now and not when all tasks have been played.

    Args:
        option: that names it, for messages.

    Raises:
        SeroError: it cannot be read, or is no result.
    """
    from trainer.evaluation.agreement import compare_outcomes
    from trainer.evaluation.show import headline

    try:
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        result["split"], result["wins"], result["n"], result["success"]
        compare_outcomes(result, result)
        headline(result)
    except IsADirectoryError as error:
        raise SeroError(
            f"{option} {path} is a folder. Name a result file, such as those in eval/ and "
            "eval/later/ of a run folder."
        ) from error
    except OSError as error:
        raise SeroError(f"{option} {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SeroError(f"{option} {path} is no evaluation result: {error!r}.") from error
    return result


def _lines(c: Mapping[str, Any]) -> list[str]:
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
