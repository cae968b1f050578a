from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.trainer import small
from trainer.config import ConfigError, WarmstartConfig
from trainer.supervised import warmstart
from trainer.supervised.warmstart import demonstrate, segments, supervised, warm_policy
from trainer.worlds.tasks import make_env, split_tasks

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


def test_a_command_that_no_reply_sends_is_not_trained() -> None:
    demonstration = _demonstrations(repeat=1)[0]
    (view, _), *rest = demonstration.decisions
    forged = replace(demonstration, decisions=((view, "look<end>"), *rest))
    assert len(segments([forged], small.student())) == len(rest)


def test_training_is_deterministic_and_learns() -> None:
    rows = segments(_demonstrations(repeat=1), small.student())
    config = WarmstartConfig(steps=30, batch=8, lr=1e-2, warmup_steps=3)
    left, right = small.model(std=0.02), small.model(std=0.02)
    outcome = supervised(left, rows, config, pad_id=0)
    assert supervised(right, rows, config, pad_id=0) == outcome
    losses = outcome.losses
    assert (len(losses), outcome.nonfinite_steps) == (30, 0)
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


def test_a_gradient_that_is_not_finite_is_refused_and_counted() -> None:
    rows = segments(_demonstrations(repeat=1), small.student())
    config = WarmstartConfig(steps=4, batch=8, lr=1e-2, warmup_steps=0)
    model = small.model(std=0.02)
    seen: list[dict[str, torch.Tensor]] = []
    # The second step's gradient of one parameter; each step has several micro-batches.
    model.model.norm.weight.register_hook(lambda grad: grad * math.inf if len(seen) == 1 else grad)
    outcome = supervised(
        model, rows, config, pad_id=0, progress=lambda step, loss: seen.append(small.weights(model))
    )
    assert (len(outcome.losses), outcome.nonfinite_steps) == (4, 1)
    assert small.same(seen[0], seen[1])
    assert not small.same(seen[1], seen[2])
    assert all(torch.isfinite(value).all() for value in small.weights(model).values())


def test_a_warm_start_that_came_to_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, good = warm_policy(small.small_config(), small.games())
    assert good["nonfinite_steps"] == 0
    nan = torch.tensor(math.nan, requires_grad=True)
    monkeypatch.setattr(warmstart, "aggregate", lambda logp, *rest: logp.sum() * nan)
    model, _, report = warm_policy(small.small_config(), small.games())
    assert (report["steps"], report["nonfinite_steps"]) == (4, 4)
    assert (report["first_loss"], report["last_loss"]) == (None, None)
    json.dumps(report, allow_nan=False)
    cold, _, _ = warm_policy(small.small_config(warmstart__steps=0), small.games())
    assert small.same(small.weights(model), small.weights(cold))


def test_dropout_neither_changes_what_is_learnt_nor_draws_from_global_state() -> None:
    rows = segments(_demonstrations(repeat=1), small.student())
    config = WarmstartConfig(steps=3, batch=8, lr=1e-2, warmup_steps=0)
    plain, dropping = small.model(std=0.02), small.model(std=0.02)
    for layer in dropping.model.layers:
        layer.self_attn.attention_dropout = 0.5
    dropping.train()
    state = torch.get_rng_state()
    outcome = supervised(dropping, rows, config, pad_id=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert outcome == supervised(plain, rows, config, pad_id=0)
    assert small.same(small.weights(plain), small.weights(dropping))
    assert not dropping.training
