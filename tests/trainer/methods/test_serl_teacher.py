"""SERL's teacher, and the distillation term that follows it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.methods.serl_support import (
    LIMITS,
    command_of,
    learn,
    moved_copy,
    prepared_serl,
    serl_config,
    serl_of,
    serl_turns,
    step_of,
    told_row,
)
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import BaseStep, LossStats, base_backward, score_segments
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.methods.reweighting.serl import Serl
from trainer.metrics import Phases, read_metrics
from trainer.models.policy import collate, pad_rows, token_distributions, token_logprobs
from trainer.models.tiny import save_policy
from trainer.rollouts.data import segments_from_turns
from trainer.runs.checkpoint import read_tensors
from trainer.supervised.warmstart import demonstrate, segments, supervised
from trainer.worlds.tasks import make_env, split_tasks

# -------------------------------------------------------------------------- the teacher


def test_the_teacher_gets_no_gradient_and_follows_every_so_many_iterations() -> None:
    model = small.model()
    method = prepared_serl(serl_of(sync_every=2, act_weight=0.1, act_kind="rkl"), model)
    config = method.setup.config
    learner = Learner(config, model, small.student(config), methods=[method])
    teacher = method.teacher.of(model)
    start = small.weights(teacher)
    learner.learn(0, list(serl_turns()), Phases())
    assert small.same(small.weights(teacher), start)
    assert not small.same(small.weights(model), start)
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    learner.learn(1, list(serl_turns()), Phases())
    assert small.same(small.weights(teacher), small.weights(model))


@lru_cache(maxsize=1)
def _half_trained() -> Any:
    """A policy that gets the form of a reply right now and then, so that there is a command."""
    config = small.small_config(warmstart__steps=40, warmstart__batch=16, warmstart__lr=1e-2)
    env, student, model = (
        make_env(config.env, small.games(), "train"),
        small.student(),
        small.model(),
    )
    tasks = split_tasks(config.env, small.games(), "train")
    rows = segments([demonstrate(env, task, config.warmstart) for task in tasks], student)
    supervised(model, rows, config.warmstart, pad_id=student.pad_id)
    return model


@pytest.mark.parametrize(
    ("name", "section", "follows"),
    [
        ("serl", {"sync_every": 3, "act_weight": 0.1, "decay": 9}, False),
        ("rlsd", {"sync_every": 1, "context": "plan", "decay": 9}, True),
    ],
)
def test_a_resumed_run_has_the_teacher_of_the_run(
    name: str, section: dict[str, Any], follows: bool, tmp_path: Path
) -> None:
    save_policy(tmp_path / "policy", small.twin(_half_trained()), small.tokenizer())
    config = run_config(
        tmp_path,
        run__iterations=4,
        env__max_steps=3,
        rollout__tasks=1,
        optim__lr=1e-3,
        eval__tasks=1,
        **{f"auxiliary__{name}": section},
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=2)
    train(config, parts, resume=True)
    assert small.same(trained(whole), trained(parts))
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert sampled(whole) == sampled(parts)
    alphas = [m[f"{name}/alpha"] for m in straight.metrics]
    assert alphas == pytest.approx([0.5 * (1 - k / 9) for k in range(4)])
    measured = "serl/act_loss" if name == "serl" else "rlsd/u_mean"
    assert all(m[measured] is not None for m in straight.metrics)
    checkpoints = [folder / "checkpoints/000004" for folder in (whole, parts)]
    kept, again = (read_tensors(c / f"{name}.safetensors") for c in checkpoints)
    assert small.same(kept, again)
    policy, first = trained(whole), small.weights(_half_trained())
    teacher = {key.removeprefix("teacher/"): value for key, value in kept.items()}
    assert teacher
    assert all(torch.equal(v, policy[k]) for k, v in teacher.items()) == follows
    assert not all(torch.equal(v, first[k]) for k, v in teacher.items())


# -------------------------------------------------------------------------- L_act


def _act_gradient(config: Config, tokens: int = 4096) -> tuple[Tensor, Serl, Any]:
    """Gradient of the method alone on all turns, under a policy that has moved on."""
    model = small.model()
    method = prepared_serl(config, model)
    policy = moved_copy(model)
    step = step_of(range(len(serl_turns())))
    limits = PassLimits(tokens, 0)
    term = method.token_term(step)
    rows = segments_from_turns(serl_turns())
    nothing = [torch.zeros(row.trained, dtype=torch.float64) for row in rows]
    base = BaseStep(rows, step.turns, nothing, None, [term] if term else [], 0.0)
    base_backward(policy, base, config.objective, limits, LossStats())
    if method.has_pass(step):
        method.backward(policy, step, limits)
    return _gradient(policy), method, policy


def _gradient(model: Any) -> Tensor:
    return torch.cat([
        (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()
    ])  # fmt: skip


def _expected(kind: str, policy: Any) -> Tensor:
    """L_act by its definition, over all commands at once."""
    turns, teacher_model = serl_turns(), small.model()
    own = collate(segments_from_turns(turns))
    told = collate([told_row(turn) for turn in turns])
    mask = pad_rows([command_of(turn) for turn in turns], torch.bool, width=own.mask_B_T.shape[1])
    with torch.no_grad():
        t_B_T = token_logprobs(teacher_model, told).logprobs
        t_N_V = token_distributions(teacher_model, told)
    s_B_T = token_logprobs(policy, own).logprobs
    s_N_V = token_distributions(policy, own)
    if kind == "pg_rkl":
        return ((s_B_T - t_B_T).detach() * s_B_T)[mask].mean()
    if kind == "k3":
        d = (t_B_T - s_B_T).clamp(max=0.5)[mask]
        return (d.exp() - d - 1).mean()
    inside = mask[own.mask_B_T]
    s, t = s_N_V[inside], t_N_V[inside]
    if kind == "rkl":
        return (s.exp() * (s - t)).sum(-1).mean()
    m = (0.3 * t.exp() + 0.7 * s.exp()).log()
    return (0.3 * t.exp() * (t - m) + 0.7 * s.exp() * (s - m)).sum(-1).mean()


@pytest.mark.parametrize("kind", ["pg_rkl", "k3", "rkl", "js"])
def test_the_distillation_term_is_its_definition(kind: str) -> None:
    """Coefficient: weight * act_weight * alpha_k / alpha_0; a mean over the commands' tokens."""
    own = {"k3": {"act_clamp": 0.5}, "js": {"act_beta": 0.3}}
    section = {"act_kind": kind, "act_weight": 0.5, "weight": 0.8, **own.get(kind, {})}
    found, method, policy = _act_gradient(serl_of(**section))
    policy.zero_grad()
    expected = _expected(kind, policy)
    (0.4 * expected).backward()
    assert float(_gradient(policy).abs().max()) > 1e-3
    torch.testing.assert_close(found, _gradient(policy), rtol=1e-3, atol=1e-5)
    assert method.metrics()["serl/act_loss"] == pytest.approx(float(expected.detach()), rel=1e-3)


@pytest.mark.parametrize("kind", ["pg_rkl", "js"])
def test_micro_batches_change_nothing(kind: str) -> None:
    config = serl_of(act_kind=kind, act_weight=0.5)
    whole, cut = (_act_gradient(config, tokens)[0] for tokens in (10**9, 300))
    torch.testing.assert_close(cut, whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["pg_rkl", "k3", "rkl", "js"])
def test_commands_move_towards_what_the_teacher_would_say(kind: str) -> None:
    """With no base objective: S - T shrinks on the tokens that were compared."""
    config = serl_config(
        objective__name="none",
        optim__lr=1e-3,
        optim__steps=1,
        auxiliary__serl={
            "act_weight": 0.5,
            "act_kind": kind,
            **({"act_clamp": None} if kind == "k3" else {}),
        },
    )
    model = small.model()
    told = [told_row(turn) for turn in serl_turns()]
    masks = [torch.tensor(command_of(turn)) for turn in serl_turns()]
    goal = score_segments(model, told, LIMITS)

    def tokens() -> Tensor:
        own = score_segments(model, segments_from_turns(serl_turns()), LIMITS)
        return torch.cat([v[m] for v, m in zip(own, masks, strict=True)])

    gap = torch.cat([v[m] for v, m in zip(goal, masks, strict=True)]) - tokens()
    before = tokens()
    metrics = learn(config, model)
    assert float((gap * (tokens() - before)).mean()) > 0
    if kind in ("pg_rkl", "k3"):
        assert metrics["loss/auxiliary"] is None
    else:
        assert metrics["loss/serl"] == pytest.approx(0.5 * metrics["serl/act_loss"])
    assert metrics["serl/act_loss"] is not None


def test_the_distillation_term_decays_with_alpha() -> None:
    for kind in ("pg_rkl", "rkl"):
        config = serl_of(act_weight=0.5, act_kind=kind, decay=4, alpha=0.0)
        assert prepared_serl(config, small.model(), 1).act_scale == 0.375
        gone = prepared_serl(config, small.model(), 4)
        assert gone.act_scale == 0.0
        assert not gone.has_pass(step_of(range(5), 4))
    method = prepared_serl(serl_of(), small.model())
    assert not method.has_pass(step_of(range(5))), "the default is without it"
    sampled_term = prepared_serl(serl_of(act_weight=0.1), small.model())
    assert not sampled_term.has_pass(step_of(range(5)))
    term = sampled_term.token_term(step_of(range(5)))
    assert term is not None
    assert term.needs(0)
    assert not term.needs(999)
    plain = prepared_serl(serl_of(), small.model()).token_term(step_of(range(5)))
    assert plain is not None
    assert not plain.needs(0)
