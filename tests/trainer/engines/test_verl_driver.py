"""Our side of a run through verl: rollouts, steps, branches. Needs no verl.

What verl's actor would do with the batch is done here in a few lines of torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.engines import own_update
from trainer.config import Config, ConfigError
from trainer.engines.verl.branch_rows import BRANCH, make_policy_loss
from trainer.engines.verl.driver import Driver, Iteration
from trainer.engines.verl.estimators import ESTIMATORS
from trainer.engines.verl.settings import verl_settings
from trainer.engines.verl.steps import StepError
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits, Rollouts, Step
from trainer.rollouts.metrics import rollout_metrics

NAMED: dict[str, Any] = {
    "model__path": "/not/read",
    "objective__name": "gigpo",
    "auxiliary__sero": {"weight": 0.5},
    "optim__old_logprobs": "recompute",
    "optim__optimizer": "sgd",
    "optim__weight_decay": 0.0,
    "optim__grad_clip": 0.0,
    "env__max_steps": 8,
    "rollout__tasks": 3,
}


def _config(**overrides: Any) -> Config:
    return small.small_config(**NAMED | overrides)


def _driver(config: Config, model: Any) -> Driver:
    limits = PassLimits.of(config, small.student(config))
    return Driver(
        config,
        small.student(config),
        small.half_expert(0.6),
        lambda segments: score_segments(model, segments, limits),
        small.games(),
    )


def _values(config: Config, found: Iteration, model: Any) -> dict[str, Tensor]:
    """Old log-probs under the model and advantages by the estimator that verl would call."""
    mask = found.tensors["response_mask"]
    limits = PassLimits.of(config, small.student(config))
    old = torch.zeros(mask.shape)
    old[mask.bool()] = torch.cat(score_segments(model, found.segments, limits))
    named = verl_settings(config)
    advantages, _ = ESTIMATORS[named["algorithm.adv_estimator"]](
        found.tensors["token_level_rewards"], mask, index=found.arrays["uid"],
        config={"sero": named["algorithm.sero"]},
    )  # fmt: skip
    return {"old_log_probs": old, "advantages": advantages}


@pytest.fixture(scope="module")
def model() -> Any:
    return small.model()


def test_rollouts_are_those_of_our_trainer(model: Any) -> None:
    config = _config()
    driver = _driver(config, model)
    for number in (0, 2):
        found = driver.collect(number)
        driver.abandon()
        own = small.rollouts(config, small.half_expert(0.6), iteration=number)
        assert [t.episode for t in found.trajectories] == [t.episode for t in own]
        assert [(t.tid, t.command, t.response_ids) for t in found.turns] == [
            (turn.tid, turn.command, turn.response_ids) for t in own for turn in t.turns
        ]
    driver.close()


def test_a_turn_is_a_row(model: Any) -> None:
    driver = _driver(_config(), model)
    found = driver.collect(0)
    driver.close()
    tensors, mask = found.tensors, found.tensors["response_mask"]
    assert len(found.turns) == len(mask) == len(found.arrays["uid"])
    for m, turn in enumerate(found.turns):
        kept = tensors["attention_mask"][m].bool()
        assert tensors["input_ids"][m][kept].tolist() == [*turn.prompt_ids, *turn.response_ids]
        size = len(turn.response_ids)
        assert mask[m].tolist() == [1] * size + [0] * (mask.shape[1] - size)
        paid = tensors["token_level_rewards"][m]
        assert paid[size - 1] == 10.0 * (turn.done and turn.success)
        assert paid.sum() == paid[size - 1]
        assert found.arrays["uid"][m] == turn.uid


def test_steps_and_branch_rows_are_those_of_our_trainer(model: Any) -> None:
    config = _config(optim__steps=3, auxiliary__sero={"weight": 0.5, "w_min": 0.0})
    driver = _driver(config, model)
    found = driver.collect(0)
    made = driver.update_batch(found, _values(config, found, model), ranks=2)
    learner = own_update.learner(config, model, driver.student)
    (method,) = learner.methods
    method.prepare(Rollouts(0, found.turns, found.segments, found.trajectories), model)
    parts = learner._partition(found.turns, 0, 0)
    assert driver.parts(found) == parts
    per = made.step_rows // 2
    half = len(made.tensors["responses"]) // 2
    total = 0
    for i, part in enumerate(parts):
        rows = method.rows(Step(0, 0, i, 3, tuple(part)))
        total += len(rows)
        places = [*range(i * per, (i + 1) * per), *range(half + i * per, half + (i + 1) * per)]
        old = made.tensors["old_log_probs"][places]
        branch = (old == BRANCH).any(dim=-1)
        expected = sorted(config.auxiliary.sero.weight * row.coefficient for row in rows)
        coefficients = made.tensors["advantages"][places][branch].max(dim=-1).values
        assert sorted(coefficients.tolist()) == pytest.approx(expected, rel=1e-6)
        trained = made.tensors["response_mask"][places].sum(dim=-1)
        assert int((trained > 0).sum()) == len(part)
    assert made.branch_rows == total > 3
    assert driver.metrics(found)["sero/roots"] == method.metrics()["sero/roots"]
    driver.close()


def _log_probs(model: Any, tensors: dict[str, Tensor]) -> Tensor:
    """(B, T) of the response tokens, from padded rows."""
    out = model(
        input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"], use_cache=False,
    )  # fmt: skip
    T = tensors["responses"].shape[1]
    logits = out.logits[:, -T - 1 : -1].float().log_softmax(dim=-1)
    return logits.gather(-1, tensors["responses"][..., None])[..., 0]


def _update(model: Any, tensors: dict[str, Tensor]) -> None:
    """The gradient of one optimiser step: verl's token mean of the clipped loss, and the rows."""

    def clipped(**given: Any) -> tuple[Tensor, dict[str, Any]]:
        ratio = (given["log_prob"] - given["old_log_prob"]).exp()
        adv, mask = given["advantages"], given["response_mask"]
        loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2))
        loss = torch.where(adv < 0, torch.min(-3.0 * adv, loss), loss)
        return (loss * mask).sum() / mask.sum(), {}

    loss, _ = make_policy_loss(clipped)(
        tensors["old_log_probs"], _log_probs(model, tensors), tensors["advantages"],
        tensors["response_mask"],
    )  # fmt: skip
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "objective", ["grpo", "gigpo", "hgpo", "rloo", "reinforce_pp_baseline", "dr_grpo"]
)
def test_the_gradient_is_that_of_our_trainer(objective: str) -> None:
    config = _config(objective__name=objective, objective__aggregation="token-mean", optim__steps=1)
    model = small.model().double()  # or rounding of float32 is all that there is to see
    driver = _driver(config, model)
    found = driver.collect(0)
    values = _values(config, found, model)
    made = driver.update_batch(found, values, ranks=1)
    assert made.branch_rows
    _update(model, made.tensors)
    through = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    expected = own_update.gradients(config, small.model().double(), driver.student, found)
    driver.close()
    assert own_update.apart(through, expected) < 1e-6


def test_branches_reach_nothing_of_the_base(model: Any) -> None:
    """With SERO and without: the same turns, rewards, advantages, old log-probs and steps."""
    turns, values, rows, branches = [], [], [], []
    for section in ({"weight": 0.5}, None):
        config = _config(auxiliary__sero=section)
        driver = _driver(config, model)
        found = driver.collect(0)
        values.append(_values(config, found, model))
        made = driver.update_batch(found, values[-1], ranks=1)
        driver.close()
        turns.append(found.tensors)
        branches.append(made.branch_rows)
        # A step's own rows, whatever stands between them.
        T = values[-1]["advantages"].shape[1]
        steps = torch.arange(len(made.tensors["responses"])) // made.step_rows
        own = (made.tensors["response_mask"] > 0).any(dim=-1)
        kept = [made.tensors[name][own][:, :T].tolist() for name in (*values[-1], "response_mask")]
        rows.append(sorted(zip(steps[own].tolist(), *kept, strict=True)))
    assert branches[0] > 0
    assert branches[1] == 0
    for name in turns[0]:
        assert torch.equal(turns[0][name], turns[1][name]), name
    for name in values[0]:
        assert torch.equal(values[0][name], values[1][name]), name
    assert rows[0] == rows[1]


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_weight_0_measures_and_does_not_train(model: Any, weight: float) -> None:
    config = _config(auxiliary__sero={"weight": weight})
    driver = _driver(config, model)
    found = driver.collect(0)
    made = driver.update_batch(found, _values(config, found, model), ranks=1)
    assert (made.branch_rows > 0) == (weight > 0)
    assert driver.metrics(found)["sero/roots"] == 3
    driver.close()


def test_a_pass_too_short_for_a_row_is_refused(model: Any) -> None:
    config = _config(optim__micro_batch_tokens=40)
    driver = _driver(config, model)
    found = driver.collect(0)
    values = {k: torch.zeros(found.tensors["response_mask"].shape) for k in ("advantages",)}
    values["old_log_probs"] = values["advantages"]
    short = _config(optim__micro_batch_tokens=4096)
    limits = PassLimits.of(short, driver.student)
    assert driver.sero is not None
    driver.sero.brancher.scorer = lambda s: score_segments(model, s, limits)  # type: ignore[union-attr]
    with pytest.raises(StepError, match=r"optim\.micro_batch_tokens=40"):
        driver.update_batch(found, values, ranks=1)
    driver.close()


def test_evaluation_and_figures(model: Any) -> None:
    config = _config(auxiliary__sero=None)
    sampler = small.CommandSampler(lambda request, prompt: "look")
    driver = Driver(config, small.student(config), sampler, None, small.games())
    found = driver.collect(0)
    figures = driver.metrics(found)
    assert figures == rollout_metrics(found.trajectories, found.turns)
    result = driver.evaluate()
    assert list(result) == ["valid_seen"]
    assert len(result["valid_seen"]["tasks"]) == 4
    driver.close()


def test_what_does_not_run_is_refused_before_anything_starts() -> None:
    config = small.small_config(**NAMED | {"objective__name": "ppo"})
    with pytest.raises(ConfigError, match="does not run through verl"):
        Driver(config, small.student(), small.half_expert(), None, small.games())
    with pytest.raises(ValueError, match="give a scorer"):
        Driver(_config(), small.student(), small.half_expert(), None, small.games())
