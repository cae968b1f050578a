"""How each method of the numeric vectors is evaluated with this package's own functions.

One small adapter per method: it reads the case's parameters, calls the public function, and
returns the value in the layout of the file. `trainer.verify_vectors` does the comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.auxiliary import sero, sero_report, sero_weights
from trainer.objectives import (
    Denominators,
    aggregate,
    clipped_surrogate,
    dense_ids,
    grpo_advantages,
    kl_per_token,
    policy_loss,
)
from trainer.objectives.groups import Singleton

Json = Any
BaseMethod = Callable[["Params", Mapping[str, Json] | None], Json]
AuxMethod = Callable[["Params"], Json]


class Params:
    """A case's parameters; reading marks them, so that none is silently ignored."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = values
        self._read: set[str] = set()

    def get(self, key: str, default: Json = None) -> Json:
        """The value of `key`, or the default where the case leaves it out."""
        self._read.add(key)
        return self._values.get(key, default)

    def need(self, key: str) -> Json:
        """The value of `key`; KeyError with the name where it is missing."""
        self._read.add(key)
        return self._values[key]

    def matrix(self, key: str) -> Tensor:
        """A (B, T) float64 tensor."""
        return torch.tensor(self.need(key), dtype=torch.float64)

    def ignore(self, *keys: str) -> None:
        """Mark shared inputs that this method has no use for."""
        self._read.update(keys)

    def subset(self, *keys: str) -> dict[str, Json]:
        """The options among `keys` that the case sets, as keyword arguments."""
        self._read.update(keys)
        return {key: self._values[key] for key in keys if key in self._values}

    def finish(self) -> None:
        """Raise ValueError if the case has parameters nobody read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise ValueError(f"unknown parameters {unknown}")


# -- base objectives ---------------------------------------------------------------------------


class Rows(NamedTuple):
    """Turns of a scenario, ordered by group, then trajectory, then step; all of shape (M,)."""

    rewards: Tensor
    format_valid: Tensor
    uid: Tensor
    tid: Tensor
    t: Tensor


def _rows(scenario: Mapping[str, Json] | None) -> Rows:
    if scenario is None:
        raise ValueError("this method needs a scenario")
    uid_of = [trajectory["uid"] for trajectory in scenario["trajectories"]]
    groups = dense_ids(uid_of).tolist()
    order = sorted(range(len(groups)), key=lambda i: groups[i])
    uids: list[int] = []
    tids: list[int] = []
    rewards: list[float] = []
    valid: list[bool] = []
    steps: list[int] = []
    for tid, i in enumerate(order):
        for t, step in enumerate(scenario["trajectories"][i]["steps"]):
            uids.append(groups[i])
            tids.append(tid)
            rewards.append(step["reward"])
            valid.append(bool(step["valid"]))
            steps.append(t)
    return Rows(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(valid, dtype=torch.bool),
        torch.tensor(uids, dtype=torch.int64),
        torch.tensor(tids, dtype=torch.int64),
        torch.tensor(steps, dtype=torch.int64),
    )


def _grpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    flavor = params.need("flavor")
    options = params.subset("ddof", "eps", "use_std")
    return _advantages(params, scenario, flavor, options)


def _dr_grpo(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    return _advantages(params, scenario, params.need("flavor"), {"use_std": False})


def _advantages(
    params: Params, scenario: Mapping[str, Json] | None, flavor: Any, options: dict[str, Json]
) -> Json:
    # The vectors of the code flavours hold the raw score that public code gives a pool of one.
    singleton: Singleton = "zero" if flavor == "paper" else "raw"
    penalty = params.get("pen", 0.1)
    rows = _rows(scenario)
    return grpo_advantages(
        *rows, flavor=flavor, penalty=penalty, singleton=singleton, **options
    ).tolist()


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


def _projection(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    from agent_envs.prompting.parsing import project

    action, valid = project(params.need("text"), params.need("tail"))
    return {"action": action, "valid": int(valid)}


BASE_METHODS: dict[str, BaseMethod] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "policy_loss": _policy_loss,
    "kl": _kl,
    "projection": _projection,
}


# -- SERO --------------------------------------------------------------------------------------


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


def _tensors(rows: Sequence[Sequence[float]]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def _branch(values: Mapping[str, Json]) -> sero.Branch:
    params = Params(values)
    masks = {
        key: _tensors(value)
        for key, value in params.subset("z_mask", "loss_mask").items()
        if value is not None
    }
    branch = sero.Branch(
        valid=bool(params.get("v", 1)),
        G_pi=params.need("G_pi"),
        G_O=params.need("G_O"),
        c_R=params.get("c_R", 1.0),
        behaviour=_tensors(params.need("behav")),
        student=[logp.requires_grad_() for logp in _tensors(params.need("theta"))],
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
        "grad_logp": [[_gradient(logp).tolist() for logp in branch.student] for branch in branches],
        "diag": result.diagnostics,
    }


def _gradient(logp: Tensor) -> Tensor:
    return torch.zeros_like(logp) if logp.grad is None else logp.grad


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


AUX_METHODS: dict[tuple[str, str], AuxMethod] = {
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
