"""The names of result files: what differs from the subject's own settings is in the name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.evaluation.agreement import differences
from trainer.evaluation.prepared import Prepared

__all__ = ["result_path"]


def result_path(
    folder: Path,
    ready: Prepared,
    split: str,
    expected: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
) -> Path:
    """Where the result of a split goes. A file there was measured on the same, or there is none.

    `000003_valid_seen.json` is iteration 3 of a run under the run's own settings. Behind that come
    suite, method, trials, tasks, temperature and seeds where they are others, and six digits of a
    hash over the rest: data, limits, nucleus, wording. Where a file of that name was measured on
    something else, eight digits of a hash over all of it.

    Args:
        expected: of the split, see `trainer.evaluation.prepared.expected`.
        given: what else was asked for, such as another prompt template.
    """
    subject = ready.subject
    if subject.iteration is None:
        stem = re.sub(r"[^A-Za-z0-9.-]+", "-", subject.name).strip(".-") or "model"
    else:
        stem = f"{subject.iteration:06d}"
    name = "_".join([stem, split, *_parts(ready, split, expected, given or {})])
    path = folder / f"{name}.json"
    if path.exists() and not _same(path, expected):
        path = folder / f"{name}_{_digest(_identity(expected), 8)}.json"
    return path


def _parts(
    ready: Prepared, split: str, expected: Mapping[str, Any], given: Mapping[str, Any]
) -> list[str]:
    plan, own, now = ready.plan, ready.subject.config, ready.config
    temperature = now.eval.temperature
    parts = {
        "suite": plan.suite is not None,
        plan.method: plan.method != "plain",
        f"{plan.trials}trials": plan.trials > 1,
        f"{len(ready.ids[split])}tasks": plan.suite is None and now.eval.tasks != own.eval.tasks,
        f"t{temperature:g}" if temperature else "greedy": temperature != own.eval.temperature,
        f"{plan.seeds}seeds": plan.seeds > 1,
    }
    names = [name for name, differs in parts.items() if differs]
    rest = dict(given)
    if plan.data is not None and plan.data != own.env.data:
        rest["data"] = expected["manifest_hash"] or plan.data
    for name, value, usual in (
        ("max_steps", plan.max_steps, own.env.max_steps),
        ("max_prompt_tokens", plan.max_prompt_tokens, own.prompt.max_prompt_tokens),
        ("top_p", plan.top_p, 1.0),
        ("list_commands", plan.list_commands, False),
    ):
        if value is not None and value != usual:
            rest[name] = value
    return [*names, _digest(rest, 6)] if rest else names


def _same(path: Path, expected: Mapping[str, Any]) -> bool:
    """Whether a file is a result of the same policy, measured on the same."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return not differences(found, expected) and _who(found) == _who(expected)
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _who(result: Mapping[str, Any]) -> list[Any]:
    model = result.get("model") or {}
    known = [model["digest"]] if "digest" in model else [model.get("url"), model.get("name")]
    return [result.get("method", "plain"), *known]


def _identity(expected: Mapping[str, Any]) -> dict[str, Any]:
    apart = ("n", "tasks", "model")
    return {k: v for k, v in expected.items() if k not in apart} | {"who": _who(expected)}


def _digest(value: Mapping[str, Any], digits: int) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
