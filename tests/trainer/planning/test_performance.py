"""The rates of an iteration, from the turns that it ran over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer.generation.hf import HFSampler
from trainer.planning.accounting import ModelShape, Work, flops_of
from trainer.planning.performance import (
    iteration_performance,
    peak_of,
    policy_shape,
    sampling_work,
    work_of,
)

SHAPE = ModelShape(1, 2, 1, 1, 2, 3, 5)


def _turns() -> list[Any]:
    """Turns of a real rollout."""
    trajectories = small.rollouts(small.small_config(), small.half_expert())
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def test_work_counts_every_prompt_and_reply() -> None:
    turns = _turns()
    lengths = [len(turn.prompt_ids) + len(turn.response_ids) for turn in turns]
    work = work_of(turns)
    assert work.tokens == sum(lengths)
    assert work.pairs == sum(n * (n + 1) // 2 for n in lengths)
    assert work.trained == sum(len(turn.response_ids) for turn in turns)


def test_in_a_conversation_a_prefix_is_run_once() -> None:
    from dataclasses import replace

    first = replace(_turns()[0], prompt_ids=(1, 2), response_ids=(3,), logprobs=(-1.0,))
    second = replace(first, prompt_ids=(1, 2, 3, 4), response_ids=(5, 6), logprobs=(-1.0, -1.0))
    assert work_of([first, second], chat=True) == Work(6, 21, 3)
    assert work_of([first, second]) == Work(9, 27, 3)


def test_what_turns_have_in_common_is_counted_once() -> None:
    from dataclasses import replace

    one = replace(_turns()[0], prompt_ids=(1, 2), response_ids=(3,), logprobs=(-1.0,))
    two = replace(one, response_ids=(4,))
    # Tokens 1, 2, 3 with 1 + 2 + 3 keys, and token 4 with the two before it and itself.
    assert work_of([one, two], shared=True) == Work(4, 9, 2)
    assert work_of([one, two], chat=True) == work_of([one, two]) == Work(6, 12, 2)


def test_sampling_counts_no_prompt_that_the_sampler_does_not_run() -> None:
    config = small.small_config(env__max_steps=1, rollout__rollouts=8)
    model, student, run = small.model(), small.student(config), [0]

    def count(module: Any, given: tuple[torch.Tensor], output: Any) -> None:
        run[0] += given[0].numel()

    model.model.embed_tokens.register_forward_hook(count)
    sampler = HFSampler(model, student.stop_ids, pad_id=student.pad_id)
    played = small.rollouts(config, sampler)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    prompts = {turn.prompt_ids for turn in turns}
    assert len(prompts) < len(turns)
    found = sampling_work(turns)
    assert found.tokens == sum(map(len, prompts)) + found.trained
    # What is drawn last is not run, and rows that are over are for a while.
    assert found.tokens <= run[0] + len(turns) < work_of(turns).tokens
    shape = policy_shape(model)
    assert shape is not None
    figures = iteration_performance(
        config, shape, 1.0, sampled=turns, learnt=turns, update=Work(), seconds={}, iteration_s=1.0
    )
    assert figures["perf/model_flops"] == flops_of(shape, found, backward=False)


def test_sampling_of_different_prompts_is_one_pass_over_them() -> None:
    from dataclasses import replace

    one = replace(_turns()[0], prompt_ids=(1, 2), response_ids=(3,), logprobs=(-1.0,))
    two = replace(one, prompt_ids=(1, 4, 5))
    assert sampling_work([one, two]) == work_of([one, two]) == Work(7, 16, 2)
    # The second reply is run behind a prompt that is there already: one token, three keys.
    assert sampling_work([one, one]) == Work(4, 9, 2)
    assert sampling_work([one, two], shared=True) == work_of([one, two], shared=True)


def test_operations_and_rates_by_hand() -> None:
    config = small.small_config(
        optim__old_logprobs="recompute", objective__kl_coef=0.1, optim__epochs=1
    )
    turns = _turns()
    update = Work(100, 1000, 10)
    found = iteration_performance(
        config, SHAPE, 1e6, sampled=turns, learnt=turns[:1], update=update,
        seconds={"collect": 2.0, "update": 4.0}, iteration_s=8.0,
    )  # fmt: skip

    # A layer's matrices: 2 x (2 + 2 + 2 + 2) + 3 x 2 x 3 = 34 weights; the head 2 x 5.
    def forward(work: Work) -> float:
        return 2 * 34 * work.tokens + 2 * 10 * work.trained + 4 * 2 * work.pairs

    flops = forward(sampling_work(turns)) + 2 * forward(work_of(turns[:1])) + 3 * forward(update)
    assert found == {
        "perf/tokens_per_s": work_of(turns).tokens / 8,
        "perf/rollout_tokens_per_s": work_of(turns).trained / 2,
        "perf/update_tokens_per_s": 25.0,
        "perf/model_flops": flops,
        "perf/mfu": pytest.approx(flops / 8e6),
    }
    plain = iteration_performance(
        small.small_config(), SHAPE, None, sampled=turns, learnt=turns, update=Work(),
        seconds={}, iteration_s=8.0,
    )  # fmt: skip
    assert plain["perf/model_flops"] == forward(sampling_work(turns))
    assert plain["perf/mfu"] is None


def test_a_model_or_a_device_that_is_not_known_has_no_figure() -> None:
    shape = policy_shape(small.model())
    assert shape is not None
    assert shape.parameters == sum(p.numel() for p in small.model().parameters())
    assert policy_shape(torch.nn.Linear(2, 2)) is None
    assert peak_of("cpu") is None
    found = iteration_performance(
        small.small_config(), None, 1e12, sampled=[], learnt=[], update=Work(), seconds={},
        iteration_s=1.0,
    )  # fmt: skip
    assert (found["perf/model_flops"], found["perf/mfu"]) == (None, None)
