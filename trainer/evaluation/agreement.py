"""Whether two results were measured on the same thing, and how they differ task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_envs.errors import SeroError
from trainer.evaluation.compare import paired_difference

__all__ = [
    "Incomparable",
    "check_comparable",
    "compare_outcomes",
    "differences",
    "label",
    "told",
    "version_differences",
]

_MUST_AGREE = (
    "env_id",
    "split",
    "tasks_hash",
    "manifest_hash",
    "prompt_hash",
    "context",
    "max_prompt_tokens",
    "max_steps",
    "env_options",
    "decoding",
    "trials",
)
# What results from before these fields were written can only have been.
_EARLIER: dict[str, Any] = {"env_options": {}, "context": "window", "trials": 1}


class Incomparable(SeroError, ValueError):
    """Two evaluation results that were not measured on the same thing."""


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Every field that must agree and does not, with both values."""
    first, second = _complete(left), _complete(right)
    return {
        key: (first.get(key), second.get(key))
        for key in _MUST_AGREE
        if first.get(key) != second.get(key)
    }


def told(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, str]:
    """How two results differ in what must agree, in words, by field."""
    words = {}
    for key, (a, b) in differences(left, right).items():
        if key == "tasks_hash":
            words[key] = _tasks(left, right)
        elif key == "manifest_hash":
            words[key] = f"{_short(a)} and {_short(b)}, so the data are others"
        else:
            words[key] = f"{_short(a)} and {_short(b)}"
    return words


def label(field: str) -> str:
    """What a field of a result is called where it is told how two differ."""
    return "tasks" if field == "tasks_hash" else field


def check_comparable(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Refuses two results that were measured on different tasks, prompts or settings.

    What is known of a result before it is played will do in the place of one
    (`trainer.evaluation.prepared.expected`).

    Raises:
        Incomparable: names every field that differs.
    """
    different = told(left, right)
    if different:
        listing = "; ".join(f"{label(key)}: {words}" for key, words in different.items())
        more = ""
        if "trials" in different:
            more = " A result of several attempts at a task does not compare with single attempts."
        raise Incomparable(
            f"The results differ in {listing}. Evaluate both on the same tasks and prompt.{more}"
        )


def version_differences(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Versions of engine and packages that differ: no reason to refuse, one to look twice."""
    first, second = (
        {**(r.get("versions") or {}), **{k: v for k, v in (r.get("engine") or {}).items() if v}}
        for r in (left, right)
    )
    return {
        name: (first[name], second[name])
        for name in sorted(first.keys() & second.keys())
        if first[name] != second[name]
    }


def compare_outcomes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The success of two results on the tasks that both played, task by task.

    Each task is a pair: its outcome (1 solved, 0 not; with several sampling seeds the share of
    them) in `later` minus that in `earlier`. The interval is Student's t over these pairs
    (`trainer.evaluation.compare.paired_difference`), so what makes a task hard for both cancels
    out. It is about these policies on tasks like these; it knows nothing of other training seeds.

    Returns:
        `tasks` (pairs), `wins_before`, `wins` on them, `gained` and `lost` (solved by one only, or
        more often by it), `difference` of the shares with its 95 % interval `low`, `high`: `None`
        for fewer than two tasks, and where no task changed, since nothing then says how much they
        scatter.

    Raises:
        Incomparable: no task is in both, or a result lacks its list of tasks.
    """
    try:
        before, after = (
            {str(task["task_id"]): float(task["success"]) for task in result["tasks"]}
            for result in (earlier, later)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Incomparable(f"A result has no outcome of every task: {error!r}.") from error
    shared = [task for task in after if task in before]
    if not shared:
        raise Incomparable("The results have no task in common.")
    old, new = [before[task] for task in shared], [after[task] for task in shared]
    difference = paired_difference(new, old)
    gained = sum(b > a for a, b in zip(old, new, strict=True))
    lost = sum(b < a for a, b in zip(old, new, strict=True))
    changed = gained + lost > 0
    return {
        "tasks": len(shared),
        "wins_before": _whole(sum(old)),
        "wins": _whole(sum(new)),
        "gained": gained,
        "lost": lost,
        "difference": difference.mean,
        "low": difference.low if changed else None,
        "high": difference.high if changed else None,
    }


def _complete(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what an earlier format left unsaid."""
    full = {**_EARLIER, **result}
    decoding = full.get("decoding")
    if isinstance(decoding, Mapping) and ("seed" in decoding or "top_p" not in decoding):
        greedy = bool(decoding.get("greedy"))
        seed = decoding.get("seed")
        rest = {key: value for key, value in decoding.items() if key != "seed"}
        full["decoding"] = {
            "top_p": None if greedy else 1.0,
            "seeds": None if greedy or seed is None else [seed],
            **rest,
        }
    return full


def _tasks(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """Numbers of tasks, or how many are the same."""
    first, second = left.get("n"), right.get("n")
    if first != second:
        return f"{first} against {second} tasks"
    try:
        ids = ({str(task["task_id"]) for task in result["tasks"]} for result in (left, right))
        shared = len(next(ids) & next(ids))
    except (KeyError, TypeError):
        return "others"
    return f"{first} each, of which {shared} are the same"


def _short(value: Any) -> str:
    """A value for people: of a hash the first twelve characters."""
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"{value[:12]}..."
    return repr(value)


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
