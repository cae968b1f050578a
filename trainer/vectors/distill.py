"""Distillation, its neighbours, and Search-QA."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_envs.prompting.search_qa import qa_project, qa_reward
from trainer.auxiliary import chord, distill, divergence, luffy, sdpo, step_dpo
from trainer.vectors.params import AuxMethod, Json, Params, gradient


def _opd_adv(params: Params) -> Json:
    student, teacher, mask = (params.matrix(key) for key in ("student", "teacher", "mask"))
    return distill.opd_advantages(student, teacher, mask).tolist()


def _divergence(params: Params) -> Json:
    student, teacher = _logits(params)
    return divergence.divergence(student, teacher, **params.subset("kind", "beta")).tolist()


def _divergence_grad(params: Params) -> Json:
    student, teacher = _logits(params)
    return divergence.divergence_grad(student, teacher, **params.subset("kind", "beta")).tolist()


def _sdpo_loss(params: Params) -> Json:
    student, teacher = _logits(params)
    return sdpo.sdpo_loss(
        student,
        teacher,
        torch.tensor(params.need("tokens"), dtype=torch.int64),
        params.matrix("old"),
        params.matrix("resp_mask"),
        torch.tensor(params.need("row_mask")),
        top_k=params.get("topk"),
        **params.subset("alpha", "is_clip"),
    ).item()


def _qa_reward(params: Params) -> Json:
    return qa_reward(params.need("text"), params.need("golds"))


def _qa_project(params: Params) -> Json:
    action, valid = qa_project(params.need("text"))
    return [action, int(valid)]


def _chord_phi_loss(params: Params) -> Json:
    logp = params.matrix("logps").requires_grad_()
    loss = chord.chord_phi_loss(logp, params.matrix("mask"))
    loss.backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.item(), "grad": gradient(logp).tolist()}


def _luffy_shape(params: Params) -> Json:
    logp = params.matrix("logps").requires_grad_()
    shaped = luffy.luffy_shape(logp, **params.subset("gamma"))
    shaped.sum().backward()  # type: ignore[no-untyped-call]
    return {"f": shaped.tolist(), "dlogp": gradient(logp).tolist()}


def _step_dpo(params: Params) -> Json:
    sides = []
    for side in ("chosen", "rejected"):
        logp, ref = _row(params, side), _row(params, f"ref_{side}")
        sides.append(step_dpo.ScoredReplies(logp, ref, torch.ones_like(logp)))
    return step_dpo.step_dpo_loss(*sides, **params.subset("beta")).item()


def _logits(params: Params) -> tuple[Tensor, Tensor]:
    return params.matrix("student_logits"), params.matrix("teacher_logits")


def _row(params: Params, key: str) -> Tensor:
    return params.matrix(key).unsqueeze(0)


METHODS: dict[tuple[str, str], AuxMethod] = {
    ("opd", "opd_adv"): _opd_adv,
    ("opd", "divergence"): _divergence,
    ("opd", "divergence_grad"): _divergence_grad,
    ("sdpo", "sdpo_loss"): _sdpo_loss,
    ("qa.em", "qa_reward"): _qa_reward,
    ("qa.project", "qa_project"): _qa_project,
    ("chord", "chord_phi_loss"): _chord_phi_loss,
    ("luffy", "luffy_shape"): _luffy_shape,
    ("step_dpo", "step_dpo"): _step_dpo,
}
