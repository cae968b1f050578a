"""SERL and RLSD."""

from __future__ import annotations

from trainer.auxiliary import action_spans, anchor_context, feedback_context, rlsd, serl
from trainer.objectives.losses import policy_loss
from trainer.rollouts.tokens import span_mask
from trainer.vectors.params import AuxMethod, Json, Params, gradient


def _lam_schedule(params: Params) -> Json:
    return serl.lam_schedule(params.need("step"), **params.subset("lambda0", "decay_steps"))


def _reweighted(result: serl.Reweighted) -> Json:
    return {"adv": result.adv.tolist(), "weight": result.weight.tolist()}


def _reweight(params: Params) -> Json:
    masks = params.subset("action_mask", "row_mask")
    return _reweighted(
        serl.reweight_advantages(
            params.matrix("adv"),
            params.matrix("student"),
            params.matrix("teacher"),
            params.matrix("resp_mask"),
            params.matrix("action_mask") if masks.get("action_mask") is not None else None,
            params.matrix("row_mask") if masks.get("row_mask") is not None else None,
            alpha=params.need("lam"),
            **params.subset("clip", "delta_clamp"),
        )
    )


def _rlsd(params: Params) -> Json:
    return _reweighted(
        rlsd.rlsd_advantages(
            params.matrix("adv"),
            params.matrix("student"),
            params.matrix("teacher"),
            params.matrix("resp_mask"),
            alpha=params.need("lam"),
            **params.subset("clip"),
        )
    )


def _ppo_loss(params: Params) -> Json:
    loss, _ = policy_loss(
        *(params.matrix(key) for key in ("logp", "old", "adv", "mask")),
        clip_low=params.get("eps_low", 0.2),
        clip_high=params.get("eps_high", 0.2),
        dual_clip=params.get("clip_c", 3.0),
        aggregation=params.get("agg", "token-mean"),
    )
    return loss.item()


def _act_distill(params: Params) -> Json:
    student = params.matrix("student").requires_grad_()
    # The reference has k3 without a limit.
    loss = serl.act_loss(
        student,
        params.matrix("teacher"),
        params.matrix("mask"),
        kind=params.get("kind", "pg_rkl"),
        clamp=params.get("clamp"),
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.item(), "grad": gradient(student).tolist()}


def _action_spans(params: Params) -> Json:
    spans = action_spans.action_spans(params.need("text"), params.get("which", "all"))
    return [list(span) for span in spans]


def _token_mask(params: Params) -> Json:
    offsets = [(start, end) for start, end in params.need("offsets")]
    spans = [(start, end) for start, end in params.need("spans")]
    return [int(on) for on in span_mask(offsets, spans)]


def _norm_action(params: Params) -> Json:
    return action_spans.norm_action(params.need("text"))


def _anchor_groups(params: Params) -> Json:
    records = params.need("records")
    return anchor_context.anchor_groups(
        [record["uid"] for record in records],
        [record["step"] for record in records],
        [record["anchor"] for record in records],
        params.get("similarity"),
    )


def _serl_sections(params: Params) -> Json:
    return list(feedback_context.serl_sections(params.need("mode"), params.need("available")))


METHODS: dict[tuple[str, str], AuxMethod] = {
    ("serl.schedule", "lam_schedule"): _lam_schedule,
    ("serl.advantage", "reweight_adv"): _reweight,
    ("serl.ppo", "ppo_loss"): _ppo_loss,
    ("serl.act", "act_distill"): _act_distill,
    ("serl.spans", "action_spans"): _action_spans,
    ("serl.spans", "token_mask"): _token_mask,
    ("serl.spans", "norm_action"): _norm_action,
    ("serl.anchor", "anchor_groups"): _anchor_groups,
    ("serl.context", "serl_sections"): _serl_sections,
    ("rlsd", "reweight_adv"): _rlsd,
}
