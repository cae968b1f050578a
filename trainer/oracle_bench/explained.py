"""Every figure of `sero bench oracle` in words: its value, and one sentence on what it means.

The terminal and the page say the same. What is read here is the object of
`oracles.bench.figures.to_json`; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oracles.bench.outcomes import NOT_REPEATED
from trainer.oracle_bench.explained_model import (
    of_format,
    of_reach,
    of_scale,
    of_sweep,
)
from trainer.oracle_bench.words import Figure, Section, microseconds, number, percent, wins_of

__all__ = ["sections", "wins_from_visited"]

Result = Mapping[str, Any]


def sections(result: Result) -> tuple[Section, ...]:
    """All figures that have a value, by question; a section without any is left out."""
    found = (
        Section(
            "restore", "Restore", "Is a restored state the visited one?", _of(_restore, result)
        ),
        Section("oracle", "Oracle", "Does it win, and from where?", _of(_oracle, result)),
        Section("gate", "Gate", "Is there something to learn from it?", _of(_gate, result)),
        Section("cost", "Cost", "What does it add to an iteration?", _of(_cost, result)),
        Section("leaks", "Hidden knowledge", "Could the policy know it, too?", _of(_leaks, result)),
        Section("reach", "Reach", "How far would the policy follow?", _of(of_reach, result)),
        Section("scale", "Gradient", "How strong is it beside the base?", _of(of_scale, result)),
        Section("format", "Format", "Does it teach the reply format away?", _of(of_format, result)),
        Section("sweep", "Weights tried", "Which weight trains best?", _of(of_sweep, result)),
        Section("missing", "Not measured", "What has no figure, and why.", _of(_missing, result)),
    )
    return tuple(section for section in found if section.figures)


def wins_from_visited(result: Result) -> tuple[int, int, float | None]:
    """Branches that won, states, and the share; None: no state is in a bin."""
    bins = result["oracle_figures"]["by_steps_left"]
    wins, roots = (sum(part[name] for part in bins) for name in ("wins", "roots"))
    return wins, roots, wins / roots if roots else None


def _of(part: Any, result: Result) -> tuple[Figure, ...]:
    return tuple(part(result))


def _restore(result: Result) -> Iterator[Figure]:
    restore = result["restore"]
    yield Figure(
        "restored exactly",
        f"{restore['exact']} of {restore['roots']} ({percent(restore['share'])})",
        "States from which everything went on as recorded: what is read, what can be done, "
        "rewards and the end; below 100 % a branch starts where the policy never was.",
    )
    yield Figure(
        "commands run again",
        f"from {restore['suffixes_replayed']} states",
        "States from which the policy's own commands were run once more, to the end or to the "
        "first difference; this finds what one look at the restored state does not show.",
    )
    speed = restore["restores_per_s"]
    yield Figure(
        "restores a second",
        f"{speed:,.0f}" if speed else "none succeeded",
        "One after the other in one process; a restore that plays commands again gets slower "
        "with depth, as the chart shows.",
    )


def _oracle(result: Result) -> Iterator[Figure]:
    oracle, gate = result["oracle_figures"], result["gate"]
    yield Figure(
        "oracle, from the start",
        wins_of(oracle["from_reset"], "tasks"),
        "Tasks that it wins from their first state; what it cannot do there it will hardly do "
        "from a worse place.",
    )
    wins, roots, share = wins_from_visited(result)
    valid = f"{percent(gate['oracle_success'])} of the valid branches"
    yield Figure(
        "oracle, from visited states",
        f"{wins} of {roots} ({percent(share)}); {valid}",
        "States of failed episodes from which it wins in the steps that the policy had left; a "
        "valid branch has only commands that the environment accepts, to its end.",
    )
    yield Figure(
        "policy",
        percent(result["policy_success"]),
        "Episodes that the policy wins by itself; it failed in every episode from which the "
        "oracle takes over.",
    )
    steps = oracle["steps"]
    yield Figure(
        "steps to success",
        f"{number(steps['mean'])} on average, at most {number(steps['max'])}",
        "Commands of the branches that succeed; each is one row of training data.",
    )
    times = oracle["decision_us"]
    yield Figure(
        "time for a decision",
        f"{microseconds(times['mean'])} on average, 95 % within {microseconds(times['p95'])}",
        "Asking the oracle once; it is asked at every step of a branch.",
    )
    yield Figure(
        "commands not possible",
        percent(oracle["inadmissible_share"]),
        "Of the oracle's commands, those that the environment does not offer or refuses; a "
        "branch ends there and teaches nothing.",
    )
    others = {name: n for name, n in oracle["statuses"].items() if name != "found" and n}
    yield Figure(
        "no answer",
        ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in others.items()) or "never",
        "How often the oracle answered with something else than a command; over budget: its "
        "way is longer than the steps left; unsolvable: it proved that there is none; unsupported: "
        "it does not know what to do; timeout: its time ran out, which depends on the machine.",
    )
    yield Figure(
        "the same twice",
        f"{'yes' if oracle['deterministic'] else 'no'} ({oracle['repeated']} repeated)"
        if oracle["repeated"]
        else "not tried",
        "Whether branches that were run again came out the same, step for step; otherwise a run "
        "cannot be repeated.",
    )


def _gate(result: Result) -> Iterator[Figure]:
    gate = result["gate"]
    gap = gate["gap"]
    yield Figure(
        "failed episodes",
        percent(gate["eligible_share"]),
        "Of all episodes played; only these have states from which the oracle takes over.",
    )
    yield Figure(
        "gap",
        f"{gap['mean']:+.3f} (95 % interval {gap['low']:+.3f} to {gap['high']:+.3f})",
        "The oracle's return minus the policy's, from the same states and in the same steps; GO "
        "needs an interval above 0.",
    )
    yield Figure(
        "mean gate",
        f"{gate['mean_gate']:.3f}",
        "The gap, cut to 0 to 1: the share of the auxiliary loss's full strength that the states "
        "get on average.",
    )
    yield Figure(
        "gate of zero",
        percent(gate["zero_share"]),
        "States from which the oracle is no better, or its branch invalid: they cost time and "
        "teach nothing.",
    )
    codes = gate["invalid_by_reason"]
    if codes:
        yield Figure(
            "invalid branches",
            ", ".join(f"{code} {n}" for code, n in codes.items()),
            "Why branches cannot be used; a branch may have several reasons.",
        )
    # What went wrong in somebody's code, or is missing; the other codes say it themselves.
    words = [
        text
        for code, text in gate.get("invalid_examples", {}).items()
        if code.endswith("_error") or code in (NOT_REPEATED, "oracle_unsupported")
    ]
    if words:
        yield Figure(
            "the first of them",
            "; ".join(words),
            "What the oracle or the environment said when it gave up or failed.",
        )


def _cost(result: Result) -> Iterator[Figure]:
    cost = result["cost"]
    measured = cost["iteration_from"] == "measured"
    yield Figure(
        "overhead",
        percent(cost["overhead_share"]),
        f"What {cost['groups']} branches, one a group, add to an iteration of {cost['groups']} x "
        f"{cost['rollouts']} episodes; GO allows 25 %.",
    )
    yield Figure(
        "iteration",
        f"{cost['iteration_s']:.1f} s, {'measured' if measured else 'assumed'}",
        "What the overhead is a share of: rollouts and update with this model on this machine."
        if measured
        else "What the overhead is a share of: this policy has no model to measure, so "
        "`--iteration-s` says it.",
    )
    parts = [("restores", "restore_share"), ("oracle", "oracle_share"),
             ("environment", "env_share"), ("model", "model_share")]  # fmt: skip
    yield Figure(
        "of which",
        ", ".join(f"{word} {percent(cost[key])}" for word, key in parts if cost[key] is not None),
        "Shares of the same iteration: putting states back, asking the oracle, stepping the "
        "environment, and the model's time for the extra rows.",
    )
    yield Figure(
        "length of a branch",
        f"{cost['branch_steps']:.1f} steps on average",
        "Commands that the oracle runs from one state, whether it wins or not.",
    )
    if cost["token_share"] is not None:
        yield Figure(
            "extra tokens",
            percent(cost["token_share"]),
            "Tokens of the extra rows by those of the iteration; says what a larger model would "
            "pay.",
        )


def _leaks(result: Result) -> Iterator[Figure]:
    leaks = result["leaks"]
    if leaks is None:
        return
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in leaks["by_kind"].items())
    yield Figure(
        "commands with hidden knowledge",
        f"{leaks['leaked']} of {leaks['commands']} ({percent(leaks['share'])})"
        + (f": {kinds}" if kinds else ""),
        "Commands that nobody could tell from what the policy had read; a policy can learn them "
        "only as guesses. Lucky guesses count as well, so an oracle that knows nothing hidden has "
        "some, too.",
    )


_PARTS = {"reach": "reach", "scale": "gradient", "format_drift": "format"}


def _missing(result: Result) -> Iterator[Figure]:
    parts: dict[str, list[str]] = {}
    for key, why in result.get("not_measured", {}).items():
        parts.setdefault(why, []).append(_PARTS.get(key, key))
    for why, names in parts.items():
        yield Figure(", ".join(names), "no figures", f"{why[:1].upper()}{why[1:]}.")
