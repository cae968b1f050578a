"""Reach: how far a policy would follow an oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from oracles.bench.figures import Probe
from tests.trainer import small
from tests.trainer.oracle_bench import bench_world
from trainer.banks.policy import TrainedPolicy
from trainer.branches.records import GrownRoot, RootChoice
from trainer.branches.targets import branch_prompts
from trainer.generation.hf import HFSampler
from trainer.oracle_bench.drift import train_on_oracle
from trainer.oracle_bench.model import section_of
from trainer.oracle_bench.reach import Agreement, agreement, reach, too_long
from trainer.runs.folder import make_student


def _root(branch: Probe, z: Sequence[float], gate: float = 1.0) -> GrownRoot:
    logz = tuple(math.log(value) if value > 0 else -math.inf for value in z)
    return GrownRoot(RootChoice(0, 0), branch.branch, True, (), 0.0, gate, gate, logz=logz)


def test_figures_of_two_branches_are_those_computed_by_hand(probes: list[Probe]) -> None:
    roots = [
        _root(probes[0], (0.5, 0.25, 0.1)),  # weights 1, 1/2, 1/8
        _root(probes[0], (1.0, 0.0, 0.7, 0.9)),  # 1, 1, 0, 0
        _root(probes[0], (), gate=0.0),
    ]
    found = reach(roots, w_min=0.13)
    assert found is not None
    assert found.branches == 2
    assert found.weights == pytest.approx((1.0, 0.75, 0.0625, 0.0))
    assert found.effective_depth == pytest.approx((1.625 + 2.0) / 2)
    assert found.effective_depth == pytest.approx(sum(found.weights))
    assert found.ess == pytest.approx((1.625**2 / (1 + 0.25 + 1 / 64) + 2.0) / 2)
    assert found.beyond_root_share == pytest.approx((0.625 + 1.0) / 3.625)
    assert found.underflow_share == pytest.approx(2 / 7)
    assert found.pruned_share == pytest.approx(3 / 7)  # 1/8, 0 and 0
    first, second, third = found.z_by_depth
    assert (first.depth, first.n, second.depth, third.depth) == (0, 2, 1, 2)
    assert (first.p10, first.p50, first.p90) == pytest.approx((0.55, 0.75, 0.95))
    assert first.mean == pytest.approx(0.75)
    assert (second.p50, second.mean) == pytest.approx((0.125, 0.125))
    assert found.agreement_corr is None
    json.dumps(found.as_json(), allow_nan=False)


def test_a_depth_that_no_branch_reaches_is_left_out(probes: list[Probe]) -> None:
    found = reach([_root(probes[0], (0.9,) * 9), _root(probes[0], (0.9,))], w_min=0.0)
    assert found is not None
    assert [(q.depth, q.n) for q in found.z_by_depth] == [(0, 2), (1, 1), (2, 1), (4, 1), (8, 1)]
    assert found.pruned_share == 0.0


def test_weights_that_float64_cannot_hold_are_counted(probes: list[Probe]) -> None:
    tiny = replace(_root(probes[0], (0.5, 0.5, 0.5)), logz=(-800.0, -1.0, -1.0))
    small_ones = replace(tiny, logz=(-689.0, -3.0, -1.0))  # e^-689 is above 1e-300, e^-692 below
    found = reach([tiny, small_ones], w_min=0.0)
    assert found is not None
    assert found.underflow_share == pytest.approx(3 / 6)
    assert found.pruned_share == pytest.approx(2 / 6)  # only what is exactly 0


def test_the_correlation_is_pearsons(probes: list[Probe]) -> None:
    asked = [
        Agreement(0.1, False),
        Agreement(0.2, False),
        Agreement(0.3, True),
        Agreement(0.6, True),
    ]
    found = reach([_root(probes[0], (0.5,))], 0.0, asked)
    assert found is not None
    # deviations of z: -0.2 -0.1 0 0.3, of agreement: -1/2 -1/2 1/2 1/2
    assert found.agreement_corr == pytest.approx(0.3 / math.sqrt(0.14 * 1.0))
    assert found.agreement_share == 0.5
    same = reach([_root(probes[0], (0.5,))], 0.0, asked[:2])
    assert same is not None
    assert same.agreement_corr is None
    assert same.agreement_share == 0.0


def test_without_an_open_branch_there_is_no_reach(probes: list[Probe]) -> None:
    assert reach([], 0.0) is None
    assert reach([_root(probes[0], (), gate=0.0)], 0.0) is None


def test_agreement_is_what_the_likeliest_tokens_say(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    config, model = trained.config, trained.model
    student = make_student(config, model, trained.tokenizer)
    section = section_of(config, "success", 1.0)
    roots = bench_world.scored_roots(trained, probes)
    sampler = HFSampler(model, student.stop_ids, pad_id=student.pad_id)
    length = config.rollout.max_new_tokens
    number = sum(len(root.logz) for root in roots)
    asked = agreement(roots, student, section, sampler, length, states=10**6, seed=0)
    assert len(asked) == number
    place = 0
    for root in roots:
        prompts = branch_prompts(root.branch, student, section) if root.logz else []
        for prompt, logz, step in zip(prompts, root.logz, root.branch.steps, strict=False):
            ids = list(prompt)
            while len(ids) < len(prompt) + length and (
                ids[-1] not in student.stop_ids or len(ids) == len(prompt)
            ):
                with torch.no_grad():
                    ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            text = student.reply_text(ids[len(prompt) :])
            assert asked[place].z == math.exp(logz)
            assert asked[place].agrees == (student.template.parse(text).command == step.action)
            place += 1
    some = agreement(roots, student, section, sampler, length, states=7, seed=3)
    assert some == agreement(roots, student, section, sampler, length, states=7, seed=3)
    assert len(some) == 7
    assert {a.z for a in some} <= {a.z for a in asked}


def test_a_policy_trained_on_the_oracle_agrees_with_it_and_reaches_further(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    # The whole reply is trained, for it is the whole reply that may agree.
    section = replace(section_of(trained.config, "success", 1.0), rule="flat", loss_tokens="all")
    roots = bench_world.scored_roots(trained, probes, section)
    config = trained.config.replace(**{"optim.lr": 1e-2})
    learner = replace(trained, model=small.twin(trained.model))
    student = make_student(config, learner.model, learner.tokenizer)
    train_on_oracle(config, learner.model, student, roots, section, steps=60)
    found = []
    for policy in (trained, learner):
        sampler = HFSampler(policy.model, student.stop_ids, pad_id=student.pad_id)
        scored = bench_world.scored_roots(policy, probes)
        asked = agreement(scored, student, section, sampler, 24, states=10**6, seed=0)
        found.append(reach(scored, section.w_min, asked))
    before, after = found
    assert before is not None
    assert after is not None
    assert after.agreement_share is not None
    assert before.agreement_share is not None
    assert after.agreement_share > before.agreement_share + 0.2
    assert after.effective_depth > before.effective_depth
    assert after.beyond_root_share > before.beyond_root_share


def test_branches_that_do_not_fit_the_policy_are_counted(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    good = [probe for probe in probes if probe.branch.valid and probe.branch.success]
    short = trained.config.replace(**{"rollout.max_new_tokens": 3})
    none_fit = bench_world.scored_roots(replace(trained, config=short), probes)
    assert reach(none_fit, 0.0) is None
    assert too_long(none_fit) == len(good) > 0
    found = reach(bench_world.scored_roots(trained, probes), 0.0)
    assert found is not None
    assert found.branches + found.too_long == len(good)
    # A branch that is invalid for another reason does not count, however long it is.
    invalid = replace(none_fit[0], branch=replace(none_fit[0].branch, valid=False))
    assert too_long([invalid]) == 0
