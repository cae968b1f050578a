from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.trainer import small
from trainer.config import ConfigError, WarmstartConfig
from trainer.warmstart import demonstrate, segments, supervised, warm_policy
from trainer.worlds import make_env, split_tasks

NOISY = WarmstartConfig(random_share=0.2, inadmissible_share=0.2)


def _demonstrations(config: WarmstartConfig = NOISY, repeat: int = 3):  # type: ignore[no-untyped-def]
    world = small.small_config(env__max_steps=15)
    env = make_env(world.env, small.games(), "train")
    ids = split_tasks(world.env, small.games(), "train")
    return [demonstrate(env, task, config, i) for i in range(repeat) for task in ids]


def test_the_planner_alone_wins_along_the_shortest_plan() -> None:
    clean = WarmstartConfig(random_share=0.0, inadmissible_share=0.0)
    for demonstration in _demonstrations(clean, repeat=1):
        assert demonstration.success
        assert (demonstration.injected, demonstration.refused) == (0, 0)
        plan = small.games().walkthrough(demonstration.task_id)
        assert plan is not None
        assert len(demonstration.decisions) == len(plan)


def test_refusals_are_seen_and_never_trained() -> None:
    demonstrations = _demonstrations()
    assert sum(d.refused for d in demonstrations) > 10
    assert sum(d.injected for d in demonstrations) > sum(d.refused for d in demonstrations)
    answered = 0
    for demonstration in demonstrations:
        for view, command in demonstration.decisions:
            assert command in view.admissible
            answered += view.observation == "Nothing happens."
    assert answered > 10, "the policy must learn what to do after a refusal"


def test_injected_commands_enter_the_history_but_not_the_targets() -> None:
    found = 0
    for demonstration in _demonstrations():
        trained = {view.step: command for view, command in demonstration.decisions}
        last, _ = demonstration.decisions[-1]
        for step, (_, command) in enumerate(last.history):
            if step in trained:
                assert trained[step] == command
            else:
                found += 1
    assert found > 20


def test_demonstrations_depend_on_seed_task_and_index_alone() -> None:
    first, again = _demonstrations(), _demonstrations()
    assert first == again
    assert first[: len(first) // 3] != first[len(first) // 3 : 2 * len(first) // 3]
    assert _demonstrations(replace(NOISY, seed=1)) != first


def test_rows_train_the_whole_reply_and_nothing_else() -> None:
    tok = small.tokenizer()
    demonstrations = _demonstrations(repeat=1)
    rows = segments(demonstrations, small.student())
    commands = [command for d in demonstrations for _, command in d.decisions]
    assert len(rows) == len(commands)
    for row, command in zip(rows, commands, strict=True):
        kept = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert tok.decode(kept) == f"<think></think><action>{command}</action><end>"
        first = row.loss_mask.index(True)
        assert all(row.loss_mask[first:])


def test_training_is_deterministic_and_learns() -> None:
    rows = segments(_demonstrations(repeat=1), small.student())
    config = WarmstartConfig(steps=30, batch=8, lr=1e-2, warmup_steps=3)
    left, right = small.model(std=0.02), small.model(std=0.02)
    losses = supervised(left, rows, config, pad_id=0)
    assert supervised(right, rows, config, pad_id=0) == losses
    assert small.same(small.weights(left), small.weights(right))
    assert losses[0] == pytest.approx(math.log(len(small.tokenizer())), rel=0.1)
    assert losses[-1] < 0.5 * losses[0]


def test_nothing_to_train_on_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="max_prompt_tokens"):
        supervised(small.model(), [], WarmstartConfig(), pad_id=0)


def test_global_random_state_is_untouched() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    warm_policy(small.small_config(), small.games())
    assert torch.equal(torch.get_rng_state(), before)


def test_report_and_policy_of_a_warm_start() -> None:
    model, tok, report = warm_policy(small.small_config(), small.games())
    again, _, _ = warm_policy(small.small_config(), small.games())
    assert small.same(small.weights(model), small.weights(again))
    assert report["parameters"] == sum(p.numel() for p in model.parameters())
    assert report["vocabulary"] == len(tok)
    assert report["steps"] == 4
    assert report["rows"] > 8
    cold, _, nothing = warm_policy(small.small_config(warmstart__demonstrations=0), small.games())
    assert (nothing["rows"], nothing["first_loss"]) == (0, None)
    assert not small.same(small.weights(cold), small.weights(model))


def test_no_row_within_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_prompt_tokens"):
        warm_policy(small.small_config(prompt__max_prompt_tokens=3), small.games())
