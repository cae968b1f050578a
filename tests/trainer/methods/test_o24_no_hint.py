"""O24: without a hint a teacher trains nothing and says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.methods.distilling import LIMITS
from tests.trainer.methods.o24_support import (
    COVERAGE,
    HINTED,
    SKILLS,
    config_for,
    made,
    name_of,
    played,
    prepared,
    rollouts_of,
    trained_rows,
)
from trainer.config import Config, ConfigError
from trainer.learning.update import BaseStep, LossStats, base_backward
from trainer.methods.protocol import Rollouts, Step
from trainer.models.policy import collate, token_logprobs

# ------------------------------------------------------------------ no hint


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_a_trajectory_trains_nothing_and_is_counted(case: str) -> None:
    """Of all trajectories one is told nothing: the share of turns with a hint lacks its turns."""
    config, model = config_for(case), small.model()
    method, rollouts, untold = prepared(case, config, model)
    turns = rollouts.turns
    assert len(untold) > 0
    assert set(trained_rows(method)) == set(range(len(rollouts.turns))) - set(untold)
    name = name_of(case)
    share = method.metrics()[COVERAGE.get(name, f"{name}/rows_on")]
    assert share == pytest.approx(1 - len(untold) / len(turns), abs=1e-12)
    # a step of this trajectory alone has no term and no pass
    step = Step(0, 0, 0, 1, tuple(untold))
    assert method.token_term(step) is None
    assert not method.has_pass(step)


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_the_advantages_are_those_of_the_base(case: str) -> None:
    """Those of the whole iteration, and those of a micro-batch with told turns beside it."""
    config, model = config_for(case, **_felt(case)), small.model()
    method, rollouts, untold = prepared(case, config, model)
    before = [torch.full((len(t.response_ids),), 0.5, dtype=torch.float64) for t in rollouts.turns]
    shaped = method.shaped([row.clone() for row in before])
    changed = {i for i, (a, b) in enumerate(zip(before, shaped, strict=True)) if not a.equal(b)}
    assert changed.isdisjoint(untold)
    assert bool(changed) == (case in ("rlsd", "opid"))
    batch = collate(list(rollouts.segments))
    everyone = tuple(range(len(rollouts.turns)))
    term = method.token_term(Step(0, 0, 0, 1, everyone))
    if term is None:
        return
    adv_B_T = torch.full(batch.mask_B_T.shape, 0.5) * batch.mask_B_T
    new_B_T = token_logprobs(model, batch).logprobs.detach().double()
    found = term.advantages(adv_B_T.double(), new_B_T, batch, everyone)
    differs = (found != adv_B_T).any(dim=1)
    assert not differs[untold].any()
    assert bool(differs.any()) == (case == "serl")


def _felt(case: str) -> dict[str, Any]:
    return {"weight": 1.0} if case == "opid" else {}


@pytest.mark.parametrize("case", [c for c in HINTED if c not in ("rlsd", "opid", "sdpo", "opsd")])
def test_o24_without_a_hint_no_gradient_reaches_the_trajectory(case: str) -> None:
    """The loss of a micro-batch of everybody, differentiated by each log-prob."""
    config = config_for(case, **({"act_weight": 0.5} if case == "serl" else {}))
    model = small.model()
    method, rollouts, untold = prepared(case, config, model)
    everyone = tuple(range(len(rollouts.turns)))
    term = method.token_term(Step(0, 0, 0, 1, everyone))
    batch = collate(list(rollouts.segments))
    new_B_T = token_logprobs(model, batch).logprobs.detach().double().requires_grad_()
    loss = term.loss(new_B_T, batch, everyone)
    assert loss is not None
    (grad,) = torch.autograd.grad(loss, new_B_T)
    rows = (grad != 0).any(dim=1)
    assert not rows[untold].any()
    assert rows[[i for i in everyone if i not in untold]].any()
    rest = collate([rollouts.segments[i] for i in untold])
    cut = new_B_T[untold][:, : rest.mask_B_T.shape[1]]
    own_loss = term.loss(cut, rest, tuple(untold))
    assert own_loss is None or float(own_loss.detach()) == 0.0


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_the_rl_step_is_unchanged(case: str) -> None:
    """The gradient of a step of this trajectory, with the method and without it, bit for bit."""
    config, model = config_for(case, **_felt(case)), small.model()
    method, rollouts, untold = prepared(case, config, model)
    plain = [torch.full((len(t.response_ids),), 0.5, dtype=torch.float64) for t in rollouts.turns]
    step = Step(0, 0, 0, 1, tuple(untold))
    term = method.token_term(step)
    shaped = list(method.shaped([row.clone() for row in plain]))
    found = _gradient(model, config, rollouts, untold, shaped, [] if term is None else [term])
    expected = _gradient(model, config, rollouts, untold, plain, [])
    assert expected.abs().max() > 0
    assert torch.equal(found, expected)


def _gradient(
    model: Any,
    config: Config,
    rollouts: Rollouts,
    places: Sequence[int],
    advantages: Sequence[Tensor],
    terms: Sequence[Any],
) -> Tensor:
    segments = [rollouts.segments[i] for i in places]
    own = [advantages[i] for i in places]
    base = BaseStep(segments, tuple(places), own, None, list(terms), 1.0)
    model.zero_grad()
    base_backward(model, base, config.objective, LIMITS, LossStats())
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# ------------------------------------------------------------------ what was loaded


@pytest.mark.parametrize("name", ["sdar", "skill_sd"])
def test_o24_every_type_of_task_says_how_many_hints_it_loaded(name: str) -> None:
    """Zero for a type is an error that names the type and the way out, unless allowed."""
    two = [*SKILLS, {"name": "lamp", "text": "switch it on", "keywords": ["look"]}]
    turns = [
        replace(t, goal="look", task_type="looking")
        if t.uid == "0.0"
        else replace(t, goal="xyz", task_type="other")
        for t in played()
    ]
    for k in (1, 2):
        method = made(config_for(name, entries=two, k=k), small.model())
        method.prepare(rollouts_of(turns), small.model())
        figures = method.metrics()
        assert figures[f"{name}/loaded/looking"] == float(k)
        assert figures[f"{name}/loaded/other"] == 0.0
    strict = made(config_for(name, entries=two, allow_missing=False), small.model())
    with pytest.raises(ConfigError, match=rf"auxiliary.{name} .*'other'.*allow_missing=true"):
        strict.prepare(rollouts_of(turns), small.model())


@pytest.mark.parametrize("name", ["sdar", "skill_sd"])
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_o24_a_skill_without_words_is_an_error(name: str, text: str, tmp_path: Path) -> None:
    """It would count as loaded, and its teacher would be shown a title with nothing below."""
    entries = [*SKILLS, {"name": "hollow", "text": text, "keywords": ["put"]}]
    with pytest.raises(ConfigError, match=r"text of the skill 'hollow' is blank"):
        made(config_for(name, entries=entries), small.model())
    path = tmp_path / "skills.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(ConfigError, match=r"text of the skill 'hollow' is blank"):
        made(config_for(name, entries=(), skills=str(path)), small.model())


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "text": None},
        {"name": None, "text": "b"},
        {"name": "a", "text": "b", "keywords": "put"},
        {"name": "a", "text": "b", "keywords": [1]},
    ],
)
def test_o24_a_library_of_other_things_than_texts_is_an_error(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    """A null is no skill called "None", and one keyword is not three of one letter."""
    path = tmp_path / "skills.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(ConfigError, match=r"is no library of skills.*other things than texts"):
        made(config_for("sdar", entries=(), skills=str(path)), small.model())
