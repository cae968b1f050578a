"""SERO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from trainer.auxiliary import sero, sero_report, sero_weights
from trainer.vectors.params import AuxMethod, Json, Params, gradient, tensors


def _gate(params: Params) -> Json:
    options = params.subset("c_R", "valid")
    return sero_weights.gate(params.need("G_pi"), params.need("G_O"), **options)


def _suffix_return(params: Params) -> Json:
    return sero_weights.suffix_return(**params.subset("rewards", "t", "horizon", "gamma"))


def _success_return(params: Params) -> Json:
    return sero_weights.success_return(**params.subset("won", "finish_step", "horizon"))


def _log_z(params: Params) -> Json:
    return sero_weights.log_z(params.need("token_logps"))


def _reach_weights(params: Params) -> Json:
    return sero_weights.reach_weights(params.need("logz"), **params.subset("rule", "delta"))


def _match_depth_decay(params: Params) -> Json:
    return sero_weights.match_depth_decay(params.need("logz_bank"))


def _choose_root(params: Params) -> Json:
    group = [sero_weights.Rollout(**rollout) for rollout in params.need("group")]
    root = sero_weights.choose_root(group, **params.subset("u1", "u2", "pool", "scheme"))
    return None if root is None else list(root)


def _branch(values: Mapping[str, Json]) -> sero.Branch:
    params = Params(values)
    masks = {
        key: tensors(value)
        for key, value in params.subset("z_mask", "loss_mask").items()
        if value is not None
    }
    branch = sero.Branch(
        valid=bool(params.get("v", 1)),
        G_pi=params.need("G_pi"),
        G_O=params.need("G_O"),
        c_R=params.get("c_R", 1.0),
        behaviour=tensors(params.need("behav")),
        student=[logp.requires_grad_() for logp in tensors(params.need("theta"))],
        **masks,
    )
    params.finish()
    return branch


def _sero_loss(params: Params) -> Json:
    branches = [_branch(branch) for branch in params.need("branches")]
    options = params.subset(
        "rule", "delta", "normaliser", "lambda_O", "token_agg", "w_min", "branch_norm"
    )
    result = sero.sero_loss(branches, **options)
    result.weighted.backward()  # type: ignore[no-untyped-call]
    return {
        "loss": result.loss.item(),
        "weighted": result.weighted.item(),
        "rows": [
            [[row.gate, row.weight, row.nll, row.share] for row in rows] for rows in result.rows
        ],
        "grad_logp": [[gradient(logp).tolist() for logp in branch.student] for branch in branches],
        "diag": result.diagnostics,
    }


def _oracle_report(params: Params) -> Json:
    outcomes = []
    for values in params.need("branches"):
        branch = Params(values)
        outcomes.append(
            sero_report.BranchOutcome(
                valid=bool(branch.get("v", 1)),
                G_pi=branch.need("G_pi"),
                G_O=branch.need("G_O"),
                n_steps=branch.need("K"),
                c_R=branch.get("c_R", 1.0),
            )
        )
        branch.finish()
    costs = params.subset(
        "t_restore_ms", "t_oracle_step_ms", "t_iter_ms", "aux_tokens", "base_tokens"
    )
    return asdict(sero_report.oracle_report(outcomes, **costs))


METHODS: dict[tuple[str, str], AuxMethod] = {
    ("sero.gate", "gate"): _gate,
    ("sero.return", "suffix_return"): _suffix_return,
    ("sero.return", "success_return"): _success_return,
    ("sero.z", "log_z"): _log_z,
    ("sero.weights", "reach_weights"): _reach_weights,
    ("sero.bank", "reach_weights"): _reach_weights,
    ("sero.bank", "match_depth_decay"): _match_depth_decay,
    ("sero.root", "choose_root"): _choose_root,
    ("sero.loss", "sero_loss"): _sero_loss,
    ("sero.report", "oracle_report"): _oracle_report,
}
