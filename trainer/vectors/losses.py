"""The policy loss and the KL term."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.objectives import Denominators, aggregate, clipped_surrogate, kl_per_token, policy_loss
from trainer.vectors.params import BaseMethod, Json, Params


def _policy_loss(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    params.ignore("ref")
    new, old, adv, mask = (params.matrix(key) for key in ("new", "old", "adv", "mask"))
    clip = {
        "clip_low": params.get("lo", 0.2),
        "clip_high": params.get("hi", 0.2),
        "dual_clip": params.get("c", 3.0),
    }
    # The reference takes the padded width as the constant length.
    counts = Denominators.of(mask, length=mask.shape[1])
    how = params.get("how", "token-mean")
    loss, stats = policy_loss(new, old, adv, mask, aggregation=how, denominators=counts, **clip)
    per_token, _ = clipped_surrogate(new, old, adv, mask, **clip)
    return {
        "loss": loss.item(),
        "clipfrac": stats.metrics()["clipfrac"],
        "per_token": per_token.tolist(),
    }


def _kl(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    params.ignore("old", "adv")
    new, ref, mask = params.matrix("new"), params.matrix("ref"), params.matrix("mask")
    per_token = kl_per_token(new, ref, mask, kind=params.need("kind"), **params.subset("clamp"))
    return {"per_token": per_token.tolist(), "token_mean": aggregate(per_token, mask).item()}


METHODS: dict[str, BaseMethod] = {"policy_loss": _policy_loss, "kl": _kl}
