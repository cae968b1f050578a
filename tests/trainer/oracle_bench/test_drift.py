"""Drift: what training on the oracle alone does to the form of replies."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from oracles.bench.figures import Probe
from tests.trainer import small
from tests.trainer.oracle_bench import bench_world
from trainer.banks.policy import TrainedPolicy
from trainer.banks.rows import grown_roots
from trainer.learning.optim import gradient_norm
from trainer.oracle_bench.drift import drift, form, train_on_oracle
from trainer.oracle_bench.model import _bank_row, section_of
from trainer.oracle_bench.scale import base_config, sero_pass
from trainer.runs.folder import make_student


def test_the_form_is_that_of_the_replies_before_and_after(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config = base_config(trained.config, "train")
    section = section_of(config, "success", 1.0)
    roots = bench_world.scored_roots(trained, probes)
    found = []
    for _ in range(2):
        model = small.twin(trained.model)
        found.append(
            drift(
                config, model, trained.tokenizer, trained.tasks, roots, section,
                steps=4, episodes=6, seed=5,
            )
        )  # fmt: skip
        assert not small.same(small.weights(model), small.weights(trained.model))
    first, again = found
    assert first is not None
    assert first == again
    assert (first.steps, first.episodes) == (4, 6)
    for policy, expected in ((trained.model, first.before), (model, first.after)):
        measured = form(config, policy, trained.tokenizer, trained.tasks, episodes=6, seed=5)
        assert measured == expected
        assert measured.replies >= 6
    json.dumps(first.as_json(), allow_nan=False)


def test_targets_without_a_thought_make_replies_lose_theirs(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config = base_config(trained.config, "train").replace(**{"optim.lr": 1e-2})
    section = replace(section_of(config, "success", 1.0), rule="flat")
    student = make_student(config, trained.model, trained.tokenizer)
    rows = [_bank_row(probe, trained, 0) for probe in probes]
    shares = {}
    for mode, tokens in (("empty", "command_closing"), ("none", "all")):
        chosen = replace(section, think_mode=mode, loss_tokens=tokens)
        roots = grown_roots(rows, student, chosen, config.rollout.max_new_tokens)
        found = drift(
            config, small.twin(trained.model), trained.tokenizer, trained.tasks, roots, chosen,
            steps=12, episodes=8,
        )  # fmt: skip
        assert found is not None
        assert found.before.think_first is not None
        assert found.before.think_first > 0.9
        shares[mode] = found.after
    assert shares["empty"].think_first is not None
    assert shares["none"].think_first is not None
    assert shares["none"].format_valid is not None
    assert shares["empty"].think_first > 0.9
    assert shares["none"].think_first < 0.5
    assert shares["none"].format_valid < 0.5


def test_a_step_is_adamw_on_the_clipped_gradient_of_the_roots(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config = base_config(trained.config, "train")
    config = config.replace(**{"optim.steps": 1, "rollout.tasks": len(probes)})
    section = section_of(config, "success", 1.0)
    student = make_student(config, trained.model, trained.tokenizer)
    roots = bench_world.scored_roots(trained, probes)
    moved, by_hand = small.twin(trained.model), small.twin(trained.model)
    assert train_on_oracle(config, moved, student, roots, section, steps=1) == 1
    sero_pass(roots, section, config, student, by_hand)
    norm = section.weight * gradient_norm(by_hand.parameters())
    factor = section.weight * min(1.0, config.optim.grad_clip / norm)
    optimizer = torch.optim.AdamW(
        by_hand.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay
    )
    for parameter in by_hand.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    optimizer.step()
    start = small.weights(trained.model)
    for name, value in small.weights(by_hand).items():
        # Of entries whose gradient is next to nothing, Adam takes the sign of its rounding.
        same = torch.isclose(small.weights(moved)[name], value, atol=1e-5)
        assert same.float().mean() > 0.98, name
    assert not small.same(start, small.weights(moved))


def test_without_an_open_branch_nothing_is_trained(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config = base_config(trained.config, "train")
    section = section_of(config, "success", 1.0)
    closed = [
        replace(root, gate=0.0, rows=(), z_rows=(), logz=())
        for root in bench_world.scored_roots(trained, probes[:4])
    ]
    model = small.twin(trained.model)
    start = small.weights(model)
    for roots in ([], closed):
        arguments = config, model, trained.tokenizer, trained.tasks, roots, section
        assert drift(*arguments, episodes=1) is None
    student = make_student(config, model, trained.tokenizer)
    assert train_on_oracle(config, model, student, closed, section, steps=3) == 0
    assert small.same(start, small.weights(model))


@pytest.mark.parametrize("lr", [0.0, 1e-3])
def test_blocks_without_a_row_take_no_step(
    trained: TrainedPolicy, probes: list[Probe], lr: float
) -> None:
    """One open root among many closed ones: its step comes once in every pass over the roots."""
    config = base_config(trained.config, "train").replace(
        **{"optim.steps": 2, "rollout.tasks": 2, "optim.lr": lr}
    )
    section = section_of(config, "success", 1.0)
    roots = bench_world.scored_roots(trained, probes)
    (first, *_) = [root for root in roots if root.gate > 0]
    closed = replace(first, gate=0.0, rows=(), z_rows=(), logz=())
    model = small.twin(trained.model)
    student = make_student(config, model, trained.tokenizer)
    taken = train_on_oracle(config, model, student, [closed] * 5 + [first], section, steps=3)
    assert taken == 3
    assert small.same(small.weights(model), small.weights(trained.model)) == (lr == 0.0)
