"""Scale: SERO's gradient beside that of the base objective."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.bench.figures import Probe
from tests.trainer import small
from tests.trainer.oracle_bench import bench_world
from trainer.auxiliary.sero import Branch, sero_loss
from trainer.banks.policy import TrainedPolicy
from trainer.branches.records import GrownRoot
from trainer.config import Config
from trainer.iteration import Trainer
from trainer.oracle_bench.model import section_of
from trainer.oracle_bench.scale import (
    WEIGHTS,
    base_config,
    base_iteration,
    in_blocks,
    scale,
    sero_pass,
)
from trainer.rollouts.data import Segment, Turn
from trainer.runs.folder import RunFolder, make_student


def _logprobs(model: Any, ids: Sequence[int], wanted: Sequence[bool]) -> Tensor:
    """By the whole forward pass of transformers, one sequence at a time."""
    logits = model(torch.tensor([list(ids)])).logits[0].double()
    places = [i for i, keep in enumerate(wanted) if keep]
    return torch.stack([logits[i - 1].log_softmax(-1)[ids[i]] for i in places])


def _flat(model: Any) -> Tensor:
    parts = [torch.zeros(p.numel()) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten().double() for part in parts])


def _grpo_loss(model: Any, turns: Sequence[Turn], config: Config) -> Tensor:
    """At a ratio of 1: - sum of A log pi / tokens, with one advantage a trajectory."""
    rollout = config.rollout
    score: dict[tuple[str, str], float] = defaultdict(float)
    for turn in turns:
        won = turn.done and turn.success
        score[turn.uid, turn.tid] += rollout.success_reward * won
        score[turn.uid, turn.tid] -= rollout.format_penalty * (not turn.format_valid)
    loss, tokens = torch.zeros((), dtype=torch.float64), 0
    for turn in turns:
        group = torch.tensor([s for (uid, _), s in score.items() if uid == turn.uid]).double()
        if bool((group == group[0]).all()):
            advantage = 0.0
        else:
            own = score[turn.uid, turn.tid]
            advantage = float((own - group.mean()) / (group.std() + 1e-6))
        ids = [*turn.prompt_ids, *turn.response_ids]
        mask = [False] * len(turn.prompt_ids) + [True] * len(turn.response_ids)
        loss = loss - advantage * _logprobs(model, ids, mask).sum()
        tokens += len(turn.response_ids)
    return loss / tokens


def _sero(model: Any, roots: Sequence[GrownRoot], **options: Any) -> Tensor:
    """The readable definition, on whole forward passes."""

    def masks(rows: Sequence[Segment], zs: Sequence[Segment]) -> list[list[bool]]:
        return [
            [z for z, loss in zip(of_z.loss_mask, row.loss_mask, strict=True) if z or loss]
            for row, of_z in zip(rows, zs, strict=True)
        ]

    branches = []
    for root in roots:
        union = [
            [a or b for a, b in zip(row.loss_mask, z.loss_mask, strict=True)]
            for row, z in zip(root.rows, root.z_rows, strict=True)
        ]
        student = [
            _logprobs(model, row.ids, keep) for row, keep in zip(root.rows, union, strict=True)
        ]
        branches.append(
            Branch(
                root.valid,
                root.G_pi,
                root.G_O,
                behaviour=[values.detach() for values in student],
                student=student,
                z_mask=[torch.tensor(m) for m in masks(root.rows, root.z_rows)],
                loss_mask=[torch.tensor(m) for m in masks(root.z_rows, root.rows)],
            )
        )
    return sero_loss(branches, **options).loss


def test_norms_ratios_and_cosines_are_those_of_an_independent_differentiation(
    trained: TrainedPolicy, probes: list[Probe], tmp_path: Path
) -> None:
    config = base_config(trained.config, "train")
    section = section_of(config, "success", 1.0)
    student = make_student(config, trained.model, trained.tokenizer)
    roots = bench_world.scored_roots(trained, probes)
    model = small.twin(trained.model)
    base = base_iteration(config, model, trained.tokenizer, trained.tasks)
    assert base.attempts == 1
    all_in_one = replace(base, eligible=len(roots))
    found, took = scale(all_in_one, roots, section, config, student, model)

    other = small.twin(trained.model).double()
    folder = RunFolder(tmp_path)
    trainer = Trainer(config, folder, trained.model, trained.tokenizer, task_set=trained.tasks)
    played = trainer.collect(0).kept
    _grpo_loss(other, [t for one in played for t in one.turns], config).backward()
    b = _flat(other)
    gradients = {}
    for name, options in {
        "sero": {"w_min": section.w_min},
        "flat": {"rule": "flat"},
        "root": {"rule": "root"},
        "mass": {"branch_norm": "mass", "w_min": section.w_min},
    }.items():
        other.zero_grad(set_to_none=True)
        _sero(other, roots, **options).backward()
        gradients[name] = _flat(other)
    g = gradients["sero"]
    assert found.base_norm == pytest.approx(float(b.norm()), rel=1e-3)
    for name, norm in found.rules.items():
        assert norm == pytest.approx(float(gradients[name].norm()), rel=1e-3), name
    assert found.rules.keys() == gradients.keys()
    assert found.oracle_norm == found.rules["sero"]
    assert found.cosine == pytest.approx(float(b @ g / b.norm() / g.norm()), abs=1e-3)
    assert [row.weight for row in found.weights] == list(WEIGHTS)
    for row in found.weights:
        total = b + row.weight * g
        assert row.ratio == pytest.approx(row.weight * float(g.norm() / b.norm()), rel=2e-3)
        expected = float(b @ total / b.norm() / total.norm())
        assert row.cosine_total == pytest.approx(expected, abs=1e-3)
    expected_weights = tuple(w for w in WEIGHTS if 0.1 <= w * found.oracle_norm / base.norm <= 1)
    assert found.suggested == expected_weights
    assert (found.roots, found.blocks, took.roots) == (len(roots), 1, len(roots))
    kept = [row for root in roots for row in root.rows]
    assert 0 < took.tokens <= sum(len(row.ids) for row in kept)
    assert base.trajectories == 12
    assert base.eligible == len({one.episode.uid for one in played if not one.success})
    json.dumps(found.as_json(), allow_nan=False)


def test_blocks_are_averaged_as_the_module_says(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config = base_config(trained.config, "train")
    section = section_of(config, "success", 1.0)
    student = make_student(config, trained.model, trained.tokenizer)
    roots = bench_world.scored_roots(trained, probes)
    model = small.twin(trained.model)
    base = base_iteration(config, model, trained.tokenizer, trained.tasks)
    found, _ = scale(replace(base, eligible=5), roots, section, config, student, model)
    b = torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten().double()
            for g, p in zip(base.gradient, model.parameters(), strict=True)
        ]
    )
    blocks = []
    for part in (roots[:5], roots[5:10]):
        sero_pass(part, section, config, student, model)
        blocks.append(_flat(model))
    norm = math.sqrt(sum(float(g.norm()) ** 2 for g in blocks) / 2)
    dot = sum(float(b @ g) for g in blocks) / 2
    assert (found.roots, found.blocks) == (5, 2)
    assert found.oracle_norm == pytest.approx(norm, rel=1e-6)
    assert found.cosine == pytest.approx(dot / float(b.norm()) / norm, rel=1e-5)
    assert found.weights[-1].ratio == pytest.approx(norm / float(b.norm()), rel=1e-6)


def test_roots_are_cut_into_whole_blocks() -> None:
    roots: Any = list(range(10))
    assert in_blocks(roots, 4) == [roots[:4], roots[4:8]]
    assert in_blocks(roots, 1) == [[0], [1], [2], [3]]
    for size in (0, 10, 11):
        assert in_blocks(roots, size) == [roots]


def test_measuring_moves_nothing(trained: TrainedPolicy, probes: list[Probe]) -> None:
    config = base_config(trained.config, "train")
    section = section_of(config, "success", 1.0)
    student = make_student(config, trained.model, trained.tokenizer)
    roots = bench_world.scored_roots(trained, probes[:3])
    model = small.twin(trained.model).train()
    before = bench_world.digest(model), bench_world.global_state()
    base = base_iteration(config, model, trained.tokenizer, trained.tasks)
    scale(base, roots, section, config, student, model)
    assert (bench_world.digest(model), bench_world.global_state()) == before


def test_where_groups_do_not_differ_three_iterations_are_tried(trained: TrainedPolicy) -> None:
    # Nobody wins with the first command, and without a penalty nothing else differs.
    config = base_config(trained.config, "train")
    config = config.replace(**{"env.max_steps": 1, "rollout.format_penalty": 0})
    base = base_iteration(config, trained.model, trained.tokenizer, trained.tasks)
    assert (base.norm, base.attempts, base.eligible) == (0.0, 3, 3)
    assert all(g is None or not bool(g.any()) for g in base.gradient)
    student = make_student(config, trained.model, trained.tokenizer)
    with pytest.raises(ValueError, match="nothing to compare"):
        scale(base, [], section_of(config, "success", 1.0), config, student, trained.model)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective.name": "ppo", "objective.critic.warmup_iterations": 2},
        {"objective.name": "gigpo"},
        {"objective.name": "dapo", "objective.dynamic_rounds": 0},
        {"objective.kl_coef": 0.01},
        {"objective.name": "none", "auxiliary.format_only": {}},
        {"auxiliary.sero": {"weight": 0.5}, "auxiliary.format_only": {}},
        {"run.dtype": "bfloat16", "optim.old_logprobs": "recompute"},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_every_kind_of_base_has_a_gradient(trained: TrainedPolicy, changes: dict[str, Any]) -> None:
    config = base_config(trained.config.replace(**changes), "valid_seen")
    assert not list(config.auxiliary.active())
    assert config.base_active
    assert config.env.split == "valid_seen"
    model = small.twin(trained.model)
    reference = trained.model if config.objective.kl_coef > 0 else None
    base = base_iteration(config, model, trained.tokenizer, trained.tasks, reference)
    assert math.isfinite(base.norm)
    assert base.norm > 0
    assert base.tokens > 0
    assert base.rollout_s > 0
    assert base.update_s > 0
