"""SEED, its warm start, and the channels it is compared with: Skill-SD and OPID."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.auxiliary import hindsight_sft, opid, seed, skill_sd, skills
from trainer.vectors.params import AuxMethod, Json, Params, gradient


def _seed_opd(params: Params) -> Json:
    student, teacher, response = (params.matrix(k) for k in ("logp", "teacher", "resp_mask"))
    mask = _mask(response, params.get("step_mask"))
    options = {"aggregation": params.get("agg", "token-mean")}
    beta = params.subset("beta")
    student.requires_grad_()
    loss, stats = seed.seed_opd_loss(student, teacher, mask, **beta, **options)
    loss.backward()  # type: ignore[no-untyped-call]
    metrics = stats.metrics()
    used = bool(mask.any())
    return {
        "loss": loss.item(),
        # The file gives gradients of the token mean only, and no gates where no token counts.
        "grad": gradient(student).tolist() if options["aggregation"] == "token-mean" else None,
        "gate": seed.distillation_gate(student, teacher, **beta).tolist() if used else None,
        **{key: metrics[key] for key in ("gate_mean", "gate_active", "gap_mean")},
    }


def _mask(response: Tensor, step_mask: Json) -> Tensor:
    """A step mask is left out, given per row or given per token."""
    everyone = torch.ones(response.shape[0])
    if step_mask is None:
        return seed.opd_mask(response, everyone)
    given = torch.tensor(step_mask)
    if given.dim() == 1:
        return seed.opd_mask(response, given)
    return seed.opd_mask(response, everyone, given)


def _skill_ok(params: Params) -> Json:
    return skills.skill_ok(params.need("text"))


def _parse_skill(params: Params) -> Json:
    reply = skills.parse_skill(params.need("response"))
    return None if reply is None else {"skill": reply.skill, "ok": reply.ok}


def _sft_nll(params: Params) -> Json:
    how = params.get("agg", "token-mean")
    return hindsight_sft.sft_nll(
        params.matrix("logps"), params.matrix("resp_mask"), aggregation=how
    ).item()


def _skill_sd(params: Params) -> Json:
    columns = (params.matrix(key) for key in ("logp", "teacher", "old", "mask"))
    return skill_sd.skill_sd_loss(*columns).item()


def _opid_adv(params: Params) -> Json:
    q_ep, q_step = (torch.tensor(params.need(key)) for key in ("q_ep", "q_step"))
    return opid.opid_advantages(
        torch.tensor(params.need("a_ep"), dtype=torch.float64),
        params.matrix("old"),
        params.matrix("mask"),
        episode_B_T=params.matrix("t_ep"),
        episode_B=q_ep,
        step_B_T=params.matrix("t_step"),
        step_B=q_step,
        w_episode=params.get("w_ep", opid.WEIGHT),
        w_step=params.get("w_step", opid.WEIGHT),
    ).tolist()


METHODS: dict[tuple[str, str], AuxMethod] = {
    ("seed.opd", "seed_opd"): _seed_opd,
    ("seed.skill", "skill_ok"): _skill_ok,
    ("seed.skill", "parse_skill"): _parse_skill,
    ("seed.sft", "sft_nll"): _sft_nll,
    ("skill_sd", "skill_sd"): _skill_sd,
    ("opid", "opid_adv"): _opid_adv,
}
