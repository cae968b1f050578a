"""Every figure of `sero bench oracle` in words: its value, and one sentence on what it means.

The terminal and the page say the same. What is read here is the object of
`oracles.bench.figures.to_json`; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oracles.bench.outcomes import NOT_REPEATED

__all__ = ["Figure", "Section", "microseconds", "percent", "sections", "wins_from_visited"]

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: a short name, its value, and what it means, as one sentence."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that answer one question; `key` names it."""

    key: str
    title: str
    question: str
    figures: tuple[Figure, ...]


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
        Section("reach", "Reach", "How far would the policy follow?", _of(_reach, result)),
        Section("scale", "Gradient", "How strong is it beside the base?", _of(_scale, result)),
        Section("format", "Format", "Does it teach the reply format away?", _of(_format, result)),
        Section("sweep", "Weights tried", "Which weight trains best?", _of(_sweep, result)),
        Section("missing", "Not measured", "What has no figure, and why.", _of(_missing, result)),
    )
    return tuple(section for section in found if section.figures)


def percent(share: float | None, digits: int = 1) -> str:
    """A share for people.

    >>> percent(0.256), percent(1.0), percent(None), percent(0.00004), percent(0.0)
    ('25.6 %', '100 %', '–', '< 0.1 %', '0 %')
    """
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if abs(share) < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:.{digits}f} %"
    return f"{100 * share:.{digits}f} %"


def microseconds(value: float | None) -> str:
    """A time for people.

    >>> microseconds(12.34), microseconds(3456.0), microseconds(2.5e6), microseconds(None)
    ('12 µs', '3.5 ms', '2.5 s', '–')
    """
    if value is None:
        return "–"
    if value < 1e3:
        return f"{value:.0f} µs"
    return f"{value / 1e3:.1f} ms" if value < 1e6 else f"{value / 1e6:.1f} s"


def wins_from_visited(result: Result) -> tuple[int, int, float | None]:
    """Branches that won, states, and the share; None: no state is in a bin."""
    bins = result["oracle_figures"]["by_steps_left"]
    wins, roots = (sum(part[name] for part in bins) for name in ("wins", "roots"))
    return wins, roots, wins / roots if roots else None


def _of(part: Any, result: Result) -> tuple[Figure, ...]:
    return tuple(part(result))


def _share(share: Mapping[str, Any], count: str) -> str:
    n = share[count]
    if not n:
        return "–"
    interval = f"{100 * share['low']:.1f}–{100 * share['high']:.1f} %"
    return f"{share['wins']} of {n}, {percent(share['share'])} (95 % interval {interval})"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


# ------------------------------------------------------------------------------ without a model


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
        _share(oracle["from_reset"], "tasks"),
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
        f"{_number(steps['mean'])} on average, at most {_number(steps['max'])}",
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


# ------------------------------------------------------------------------------ with a model


def _reach(result: Result) -> Iterator[Figure]:
    reach = result["reach"]
    if reach is None:
        return
    yield Figure(
        "effective depth",
        f"{reach['effective_depth']:.2f} steps",
        "Sum of the weights w of a branch: as many of its steps count in the loss, the later "
        "ones only as far as the policy would get there.",
    )
    yield Figure(
        "effective rows",
        f"{reach['ess']:.2f}",
        "As many rows of equal weight would be as noisy; far below the length of a branch, its "
        "later rows hardly matter.",
    )
    yield Figure(
        "weight beyond the root",
        percent(reach["beyond_root_share"]),
        "Of all weight, what lies on steps after the first; near 0 the branch teaches one command.",
    )
    yield Figure(
        "rows without weight",
        f"{percent(reach['pruned_share'])} left out, {percent(reach['underflow_share'])} too small "
        "to tell from 0",
        "Rows that are left out before the model sees them, and rows whose weight vanishes.",
    )
    if reach["agreement_corr"] is not None:
        yield Figure(
            "z and agreement",
            f"correlation {reach['agreement_corr']:+.2f}",
            "Whether the policy does what the oracle does where z is high; near 0, z tells little.",
        )


def _scale(result: Result) -> Iterator[Figure]:
    scale = result["scale"]
    if scale is None:
        return
    yield Figure(
        "gradient norms",
        f"base {_number(scale['base_norm'])}, oracle {_number(scale['oracle_norm'])} at weight 1",
        "How far either would move the policy; the weight brings the second to the size of the "
        "first.",
    )
    yield Figure(
        "cosine",
        "–" if scale["cosine"] is None else f"{scale['cosine']:+.2f}",
        "Whether they pull in the same direction (1), across (0) or against each other (-1).",
    )
    suggested: Sequence[float] = scale["suggested"]
    yield Figure(
        "weights to try",
        ", ".join(f"{weight:g}" for weight in suggested) or _none_suggested(scale),
        "Weights at which the oracle's gradient is 0.1 to 1 times the base's: felt, and not in "
        "charge.",
    )
    rules = scale.get("rules")
    if rules:
        yield Figure(
            "other rules",
            ", ".join(f"{rule} {_number(norm)}" for rule, norm in rules.items()),
            "The oracle's gradient norm at weight 1 under each rule for the weights of a branch's "
            "steps: by reachability (sero), all alike (flat), the first alone (root), by "
            "reachability with each branch divided by the sum of its weights (mass).",
        )


def _none_suggested(scale: Mapping[str, Any]) -> str:
    """Where the band lies if no weight that was measured is in it."""
    base, oracle = scale["base_norm"], scale["oracle_norm"]
    if not base or not oracle:
        return "none of those measured"
    band = f"{_number(0.1 * base / oracle)} to {_number(base / oracle)}"
    tried = ", ".join(f"{row['weight']:g}" for row in scale["weights"])
    return f"none of those measured ({tried}), but {band}"


_FORMAT = (
    ("think_first", "think first", "begin with the think tag"),
    ("format_valid", "well-formed", "have the form that the prompt asks for"),
    ("command_valid", "accepted", "send a command that the environment accepts"),
)


def _format(result: Result) -> Iterator[Figure]:
    drift = result.get("format_drift")
    if drift is None:
        return
    for key, name, what in _FORMAT:
        before, after = drift["before"].get(key), drift["after"].get(key)
        yield Figure(
            f"replies, {name}",
            f"{percent(before)} before, {percent(after)} after",
            f"Share of the policy's replies that {what}, before and after {drift['steps']} steps "
            "of the auxiliary loss alone; it should not fall.",
        )


def _sweep(result: Result) -> Iterator[Figure]:
    sweep = result["sweep"]
    if sweep is None:
        return
    for split in dict.fromkeys(row["split"] for row in sweep["rows"]):
        rows = [row for row in sweep["rows"] if row["split"] == split]
        shares = (
            f"{row['weight']:g}: {percent(row['success'])} "
            f"({100 * row['low']:.0f}–{100 * row['high']:.0f})"
            for row in rows
        )
        yield Figure(
            f"success by weight, {split}",
            ", ".join(shares),
            f"After training with each weight (iterations: {sweep['iterations']}, seeds: "
            f"{len(sweep['seeds'])}, episodes played: {rows[0]['n']}), with 95 % intervals; those "
            "that overlap widely decide nothing.",
        )


_PARTS = {"reach": "reach", "scale": "gradient", "format_drift": "format"}


def _missing(result: Result) -> Iterator[Figure]:
    parts: dict[str, list[str]] = {}
    for key, why in result.get("not_measured", {}).items():
        parts.setdefault(why, []).append(_PARTS.get(key, key))
    for why, names in parts.items():
        yield Figure(", ".join(names), "no figures", f"{why[:1].upper()}{why[1:]}.")
