"""The figures of `sero bench oracle` that need a trained policy, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.oracle_bench.words import Figure, number, percent

__all__ = ["of_format", "of_reach", "of_scale", "of_sweep"]

Result = Mapping[str, Any]


def of_reach(result: Result) -> Iterator[Figure]:
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


def of_scale(result: Result) -> Iterator[Figure]:
    scale = result["scale"]
    if scale is None:
        return
    yield Figure(
        "gradient norms",
        f"base {number(scale['base_norm'])}, oracle {number(scale['oracle_norm'])} at weight 1",
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
            ", ".join(f"{rule} {number(norm)}" for rule, norm in rules.items()),
            "The oracle's gradient norm at weight 1 under each rule for the weights of a branch's "
            "steps: by reachability (sero), all alike (flat), the first alone (root), by "
            "reachability with each branch divided by the sum of its weights (mass).",
        )


def _none_suggested(scale: Mapping[str, Any]) -> str:
    """Where the band lies if no weight that was measured is in it."""
    base, oracle = scale["base_norm"], scale["oracle_norm"]
    if not base or not oracle:
        return "none of those measured"
    band = f"{number(0.1 * base / oracle)} to {number(base / oracle)}"
    tried = ", ".join(f"{row['weight']:g}" for row in scale["weights"])
    return f"none of those measured ({tried}), but {band}"


_FORMAT = (
    ("think_first", "think first", "begin with the think tag"),
    ("format_valid", "well-formed", "have the form that the prompt asks for"),
    ("command_valid", "accepted", "send a command that the environment accepts"),
)


def of_format(result: Result) -> Iterator[Figure]:
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


def of_sweep(result: Result) -> Iterator[Figure]:
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
