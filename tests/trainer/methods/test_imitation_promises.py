"""What every imitation objective leaves alone, and where it works.

1. With weight 0, or with nothing to learn from, parameters are those of the base, bit for bit.
2. How a pass is cut into micro-batches changes nothing.
3. A resumed run goes on as if there had been no break.
4. Chat prompts and plain ones, households and shops.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    NAMES,
    base_pass,
    config_of,
    gradient,
    learn,
    mixed,
    prepared,
    turns_of,
    whole,
)
from tests.trainer.short_runs import run_config, trained, untimed
from tests.trainer.test_webshop_training import first_come, scripted, shop_config
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.methods.protocol import PassLimits, Setup
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.models.tiny import TinyConfig, build_model
from trainer.rollouts.data import segments_from_turns
from trainer.rollouts.rollout import Trajectory
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

PASSES = ("dagger", "corrections", "sft", "step_dpo", "chord")
"""Those with a forward pass of their own; the others have a term in the base's."""


def _lost(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The same rollouts, as if none had won."""
    return [
        replace(
            trajectory,
            success=False,
            turns=tuple(replace(turn, success=False) for turn in trajectory.turns),
        )
        for trajectory in trajectories
    ]


def _formless(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Format differs within a group, so that a base without successes has something to learn."""
    return [
        replace(
            trajectory,
            turns=tuple(
                replace(turn, format_valid=(i + turn.t) % 3 > 0) for turn in trajectory.turns
            ),
        )
        for i, trajectory in enumerate(trajectories)
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["weight_zero", "nothing_to_learn"])
def test_without_it_parameters_are_bit_identical_to_the_base(name: str, case: str) -> None:
    config = config_of(name)
    trajectories = mixed(config)
    base, other, taught = (small.model() for _ in range(3))
    start = small.weights(base)
    plain = config.replace(**{f"auxiliary.{name}": None})
    if case == "weight_zero":
        metrics = learn(config.replace(**{f"auxiliary.{name}.weight": 0.0}), other, trajectories)
        assert any(key.startswith(f"{name}/") for key in metrics), "it is still measured"
        learn(config, taught, trajectories)
    else:
        losing = _formless(_lost(trajectories))
        learn(config, other, losing if name == "expert_iteration" else trajectories, playable=False)
        trajectories = losing if name == "expert_iteration" else trajectories
    learn(plain, base, trajectories)
    assert not small.same(start, small.weights(base)), "the base step must move the policy"
    assert small.same(small.weights(base), small.weights(other))
    if case == "weight_zero":
        assert not small.same(small.weights(base), small.weights(taught))


@pytest.mark.parametrize("name", PASSES)
def test_micro_batches_change_nothing(name: str) -> None:
    config = config_of(name)
    trajectories = mixed(config)
    model = small.model()
    method = prepared(config, trajectories, model)
    step = whole(len(turns_of(trajectories)))
    assert method.has_pass(step)
    found = []
    for tokens in (10**9, 300, 1):
        model.zero_grad()
        found.append((method.backward(model, step, PassLimits(tokens, 0)), gradient(model)))
    assert found[0][1].abs().max() > 0
    for total, grad in found[1:]:
        assert total == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(grad, found[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PASSES)
def test_the_pass_is_the_weight_times_a_loss(name: str) -> None:
    trajectories = mixed(config_of(None))
    step = whole(len(turns_of(trajectories)))
    found = []
    for weight in (0.25, 0.5):
        config = config_of(name, **{f"auxiliary__{name}__weight": weight})
        model = small.model()
        method = prepared(config, trajectories, model)
        found.append((method.backward(model, step, PassLimits(4096, 0)), gradient(model)))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(2 * found[0][1], found[1][1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["expert_iteration", "luffy"])
def test_micro_batches_change_nothing_of_a_term(name: str) -> None:
    config = config_of(name)
    trajectories = mixed(config)
    model = small.model()
    method = prepared(config, trajectories, model)
    turns = [*turns_of(trajectories), *method.joined()]
    segments = segments_from_turns(turns)
    learner = Learner(config, model, small.student(config))
    advantages = learner.advantages(turns, segments).tokens
    term = method.token_term(whole(len(turns)))
    plain = base_pass(config, model, segments, advantages, None)
    together = base_pass(config, model, segments, advantages, term)
    apart = base_pass(config, model, segments, advantages, term, tokens=1)
    assert (together - plain).abs().max() > 1e-4
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_preparing_changes_neither_the_policy_nor_the_global_random_state(name: str) -> None:
    config = config_of(name)
    trajectories = mixed(config)
    model = small.model()
    before, state = small.weights(model), torch.get_rng_state()
    method = prepared(config, trajectories, model)
    assert small.same(before, small.weights(model))
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    again = prepared(config, trajectories, model)
    first, second = (
        {k: v for k, v in m.metrics().items() if k[-2:] != "_s"} for m in (method, again)
    )
    assert first == second


@pytest.mark.parametrize("names", [[n for n in NAMES if n != "chord"], ["chord"]])
def test_a_resumed_run_goes_on_as_if_there_had_been_no_break(
    tmp_path: Path, names: list[str]
) -> None:
    switched = {f"auxiliary__{name}": {} for name in names}
    config = run_config(
        tmp_path, run__iterations=4, rollout__rollouts=2, optim__lr=1e-3, eval__tasks=1, **switched
    )
    straight = train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", until=2)
    resumed = train(config, tmp_path / "parts", resume=True)
    assert small.same(trained(tmp_path / "whole"), trained(tmp_path / "parts"))
    assert untimed(straight.metrics)[2:] == untimed(resumed.metrics)
    kept = {path.stem for path in (tmp_path / "parts/checkpoints/000002").glob("*.safetensors")}
    assert kept & set(NAMES) == {"step_dpo"} & set(names), "the others follow from the seed"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "expert_iteration"])
def test_chat_prompts_are_those_of_the_rollouts(name: str) -> None:
    config = config_of(name, prompt__template="field", rollout__tasks=1)
    trajectories = mixed(config)
    known = {turn.prompt_ids for turn in turns_of(trajectories)}
    method = prepared(config, trajectories)
    assert {prompt for prompt in _prompts(method) if prompt in known}
    metrics = learn(config, small.model(), trajectories)
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))


def _prompts(method: Any) -> list[tuple[int, ...]]:
    """Prompts of what a method trains."""
    if method.name == "luffy":
        return [turn.prompt_ids for turn in method.joined()]
    if method.name == "step_dpo":
        segments = [pair.chosen for pair in method.pairs.values()]
    elif method.name in ("chord", "sft"):
        segments = list(method.segments)
    else:
        segments = [row.segment for row in method.rows(whole(100))]
    start = small.tokenizer().encode("<think>", add_special_tokens=False)[0]
    return [s.ids[: len(s.ids) - s.ids[::-1].index(start) - 1] for s in segments]


@pytest.mark.parametrize("name", NAMES)
def test_a_shop_can_be_learned_from(name: str) -> None:
    oracle = {} if name == "expert_iteration" else {"oracle": "goal"}
    config = shop_config(
        auxiliary__sero=None, rollout__max_new_tokens=200, prompt__max_prompt_tokens=20_000,
        **{f"auxiliary__{name}": {"weight": 0.5, **oracle}},
    )  # fmt: skip
    goals = open_tasks(config.env)
    task = split_tasks(config.env, goals, "train")[0]
    trajectories = [
        replace(
            trajectory,
            episode=replace(trajectory.episode, uid="g"),
            turns=tuple(replace(t, uid="g") for t in trajectory.turns),
        )
        for trajectory in scripted(config, goals, [task, task], first_come)
    ]
    if name == "expert_iteration":
        last = replace(trajectories[0].turns[-1], success=True, reward=1.0)
        won = (*trajectories[0].turns[:-1], last)
        trajectories[0] = replace(trajectories[0], success=True, turns=won)
    model = build_model(257, TinyConfig(16, 24, 1, 1, 1, 8192, 0.3), seed=0, pad_id=256, end_id=256)
    student = make_student(config, None, ByteTokenizer())

    def new_env() -> Any:
        return make_env(config.env, goals, "train")

    methods = make_methods(Setup(config, student, model, new_env))
    learner = Learner(config, model, student, methods=methods)
    before = small.weights(model)
    metrics = learner.learn(0, turns_of(trajectories), Phases(), trajectories)
    assert metrics[f"{name}/{'pairs' if name == 'step_dpo' else 'rows'}"] > 0
    assert not small.same(before, small.weights(model))
