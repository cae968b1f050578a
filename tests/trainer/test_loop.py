from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer.batch import advantages, constant_groups, partition, trained_turns
from trainer.checkpoint import CheckpointError, load_checkpoint
from trainer.config import Config
from trainer.data import read_turns
from trainer.generation.hf import HFSampler
from trainer.learner import Learner
from trainer.loop import Trainer, train
from trainer.metrics import Phases, read_metrics
from trainer.models.tiny import load_policy, save_policy
from trainer.rng import stream
from trainer.rollout import play
from trainer.rollout_metrics import rollout_metrics
from trainer.run_folder import RunFolder, RunFolderError, load_trained
from trainer.update import BaseStep, LossStats, base_backward
from trainer.worlds import spread, tasks_at


def _config(tmp_path: Path, **overrides: Any) -> Config:
    policy = tmp_path / "policy"
    if not policy.exists():
        save_policy(policy, small.model(), small.tokenizer())
    return small.small_config(model__path=str(policy), run__save_turns=True, **overrides)


def _untimed(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what a clock says."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and not k.endswith("_s")}
        for line in metrics
    ]


def _sampled(folder: Path) -> list[tuple[Any, ...]]:
    turns = [t for path in sorted((folder / "turns").iterdir()) for t in read_turns(path)]
    return [(t.task_id, t.tid, t.t, t.response_ids, t.command, t.logprobs) for t in turns]


def _trained(folder: Path) -> dict[str, torch.Tensor]:
    return small.weights(load_trained(folder)[1])


def test_two_runs_of_one_config_are_equal(tmp_path: Path) -> None:
    config = _config(tmp_path, auxiliary__name="sero")
    first = train(config, tmp_path / "a")
    second = train(config, tmp_path / "b")
    assert _untimed(first.metrics) == _untimed(second.metrics)
    assert small.same(_trained(tmp_path / "a"), _trained(tmp_path / "b"))
    other = train(config.replace(**{"run.seed": 1}), tmp_path / "c")
    assert _untimed(other.metrics) != _untimed(first.metrics)


def test_o25_resume_is_a_continuation(tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        run__iterations=6,
        auxiliary__name="sero",
        objective__kl_coef=0.01,
        optim__warmup_steps=4,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=3)
    # What a killed run leaves after its last checkpoint is dropped by the resume.
    with (parts / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 3, "stale": True}) + '\n{"torn')
    resumed = train(config, parts, resume=True)
    assert resumed.iterations == 6
    assert len(resumed.metrics) == 3
    assert small.same(_trained(whole), _trained(parts))
    assert _untimed(read_metrics(parts / "metrics.jsonl")) == _untimed(straight.metrics)
    assert _sampled(whole) == _sampled(parts)
    assert (whole / "roots.jsonl").read_text() == (parts / "roots.jsonl").read_text()
    left, right = (load_checkpoint(p / "checkpoints/000006") for p in (whole, parts))
    assert left.state == right.state
    assert left.state["optimizer_steps"] > 6
    a, b = ((p / "optimizer.safetensors").read_bytes() for p in (left.path, right.path))
    assert a == b
    result = json.loads((whole / "eval/000006_valid_seen.json").read_text())
    assert result == json.loads((parts / "eval/000006_valid_seen.json").read_text())


def test_o25_resuming_without_state_is_an_error(tmp_path: Path) -> None:
    config = _config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run")
    more = config.replace(**{"run.iterations": 2})
    checkpoint = tmp_path / "run/checkpoints/000001"
    with pytest.raises(RunFolderError, match="already holds a run"):
        train(more, tmp_path / "run")
    with pytest.raises(RunFolderError, match="another config"):
        train(more.replace(**{"optim.lr": 1.0}), tmp_path / "run", resume=True)
    with pytest.raises(RunFolderError, match=r"it holds no run\.json"):
        train(more, tmp_path / "elsewhere", resume=True)
    state = checkpoint / "state.json"
    state.write_text(state.read_text().replace('"seed"', '"sead"'))
    with pytest.raises(CheckpointError, match=r"state\.json"):
        train(more, tmp_path / "run", resume=True)
    state.unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        train(more, tmp_path / "run", resume=True)


def test_o25_a_resume_makes_the_evaluation_that_a_killed_run_did_not(tmp_path: Path) -> None:
    config = _config(tmp_path, run__iterations=2, run__checkpoint_every=1, eval__every=1)
    straight = train(config, tmp_path / "run")
    file = tmp_path / "run/eval/000002_valid_seen.json"
    expected = json.loads(file.read_text())
    file.unlink()  # killed after the last checkpoint
    resumed = train(config, tmp_path / "run", resume=True)
    assert json.loads(file.read_text()) == expected
    assert resumed.evaluations == straight.evaluations == {"valid_seen": expected}
    stamp = file.stat().st_mtime_ns
    again = train(config, tmp_path / "run", resume=True)
    assert (again.iterations, again.evaluations) == (2, straight.evaluations)
    assert file.stat().st_mtime_ns == stamp, "what is there is not made again"


@pytest.mark.parametrize("key", ["manifest_hash", "prompt_hash"])
def test_o25_resuming_on_other_games_or_prompts_is_an_error(tmp_path: Path, key: str) -> None:
    """With `env.data: null` the games follow from the environment variables of the moment."""
    config = _config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run")
    info = tmp_path / "run/run.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {key: "of another"}))
    with pytest.raises(RunFolderError, match=f"{key} 'of another'"):
        train(config.replace(**{"run.iterations": 2}), tmp_path / "run", resume=True)


def test_arms_see_the_same_tasks_and_the_same_first_rollouts(tmp_path: Path) -> None:
    """The auxiliary objective draws from streams of its own."""
    for name in ("none", "sero"):
        train(_config(tmp_path, auxiliary__name=name), tmp_path / name)
    left, right = _sampled(tmp_path / "none"), _sampled(tmp_path / "sero")
    first = [turn for turn in left if turn[1].startswith("0.")]
    assert first == [turn for turn in right if turn[1].startswith("0.")]
    assert left != right, "the policies differ after the first update"
    assert {t[0] for t in left} == {t[0] for t in right}


def test_metrics_hold_what_a_run_needs_to_be_judged(tmp_path: Path) -> None:
    config = _config(tmp_path, auxiliary__name="sero", run__iterations=1)
    (metrics,) = train(config, tmp_path / "run").metrics
    assert metrics == read_metrics(tmp_path / "run/metrics.jsonl")[0]
    for key in (
        "success_rate", "command_valid_share", "invalid_format_rate", "frac_degenerate_groups",
        "mixed_group_share", "sero/gate_mean", "sero/gate_zero_share", "sero/gate_reasons",
        "sero/z", "sero/effective_depth", "grad/aux_over_base", "clip_fraction", "loss/kl",
        "entropy", "time/collect", "time/branch", "time/update", "tokens_per_s", "skipped_steps",
    ):  # fmt: skip
        assert key in metrics, key
    assert metrics["mixed_group_share"] + metrics["frac_degenerate_groups"] == 1
    assert metrics["turns"] == len(read_turns(tmp_path / "run/turns/000000.parquet"))
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert info["config"]["auxiliary"]["name"] == "sero"
    assert info["manifest_hash"] == small.games().manifest_hash
    roots = [json.loads(line) for line in (tmp_path / "run/roots.jsonl").read_text().splitlines()]
    assert len(roots) == metrics["sero/roots"]
    assert sum("branch_steps" in root for root in roots) == 1


# ---------------------------------------------------------------------- learning from turns


def _mixed(config: Config) -> list[Any]:
    trajectories = small.rollouts(config, small.half_expert(0.8))
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def _learn(config: Config, turns: list[Any], model: Any, **kwargs: Any) -> dict[str, Any]:
    return Learner(config, model, small.student(config), **kwargs).learn(0, turns, [], Phases())


def test_o27_a_batch_with_every_token_masked_is_skipped() -> None:
    config = small.small_config(objective__mask_truncated=True)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    turns = [replace(t, format_valid=t.t % 2 == 0) for t in turns]
    assert not any(trained_turns(turns, config.objective))
    model = small.model()
    before = small.weights(model)
    learner = Learner(config, model, small.student(config))
    metrics = learner.learn(0, turns, [], Phases())
    assert small.same(before, small.weights(model))
    assert learner.optimizer.state == {}
    assert (metrics["skipped_now"], metrics["skipped_steps"], metrics["optimizer_steps"]) == (
        2,
        2,
        0,
    )
    assert learner.learn(1, turns, [], Phases())["skipped_steps"] == 4
    json.dumps(metrics, allow_nan=False)
    # The loss itself: exactly 0, and backward works.
    stats = LossStats()
    base = BaseStep(learner.segments(turns), torch.ones(len(turns), dtype=torch.float64))
    base_backward(
        model, base, config.objective, length=24, micro_batch_tokens=500, pad_id=0, stats=stats
    )
    assert stats.metrics()["loss/policy"] == 0.0


def test_a_step_that_is_not_finite_is_counted_and_can_be_logged() -> None:
    config = small.small_config(auxiliary__name="format_only", auxiliary__keep_base=True)
    model = small.model()
    turns = _mixed(config)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    before = small.weights(model)
    metrics = _learn(config, turns, model)
    assert (metrics["nonfinite_steps"], metrics["optimizer_steps"]) == (2, 0)
    assert metrics["loss/policy"] is None
    assert metrics["loss/auxiliary"] is None
    json.dumps(metrics, allow_nan=False)
    after = small.weights(model)
    assert all(torch.equal(before[k].nan_to_num(), after[k].nan_to_num()) for k in before)


def test_dropout_neither_moves_ratios_nor_draws_from_global_state() -> None:
    config = small.small_config(optim__lr=0.0, optim__old_logprobs="recompute")
    model = small.model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.config.attention_dropout = 0.5
    model.train()
    state = torch.get_rng_state()
    metrics = _learn(config, _mixed(config), model)
    assert metrics["optimizer_steps"] == 2
    assert metrics["kl_old"] == pytest.approx(0.0, abs=1e-9)
    assert torch.equal(torch.get_rng_state(), state)


def test_groups_that_ended_before_their_first_turn_teach_nothing() -> None:
    config = small.small_config(prompt__max_prompt_tokens=1)
    trajectories = small.rollouts(config, small.half_expert())
    assert [t.turns for t in trajectories] == [()] * 6
    metrics = rollout_metrics(trajectories, [])
    assert (metrics["frac_degenerate_groups"], metrics["mixed_group_share"]) == (1.0, 0.0)


def test_o28_degenerate_groups_are_counted() -> None:
    from tests.fakes import make_turn

    draws = stream(0, purpose="test").random((4000, 2)) < 0.18
    turns = [
        make_turn(uid=str(g), tid=f"{g}.{i}", done=True, success=bool(won))
        for g, group in enumerate(draws)
        for i, won in enumerate(group)
    ]
    share = len(constant_groups(turns)) / 4000
    # 0.18^2 + 0.82^2 = 0.7048, standard deviation 0.0072
    assert share == pytest.approx(0.7048, abs=0.03)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum"])
def test_o28_equal_rewards_give_no_gradient_without_kl(aggregation: str) -> None:
    config = small.small_config(objective__aggregation=aggregation)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    model = small.model()
    before = small.weights(model)
    metrics = _learn(config, turns, model)
    assert metrics["skipped_now"] == 2
    assert small.same(before, small.weights(model))
    # The forward pass that was saved would have given exactly zero.
    learner = Learner(config, model, small.student(config))
    base = BaseStep(learner.segments(turns), learner.advantages(turns))
    full = replace(config.objective, entropy_coef=1e-300)  # makes every row contribute
    stats = LossStats()
    base_backward(model, base, full, length=24, micro_batch_tokens=999, pad_id=0, stats=stats)
    assert stats.metrics()["loss/policy"] == 0.0
    assert all(float(p.grad.abs().max()) == 0.0 for p in model.parameters() if p.grad is not None)


def test_o28_equal_rewards_keep_the_kl_term() -> None:
    """The documented choice: groups without a signal are kept, so KL still pulls them back."""
    config = small.small_config(objective__kl_coef=0.1)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    model = small.model()
    before = small.weights(model)
    metrics = _learn(config, turns, model, reference=small.model(seed=1))
    assert metrics["skipped_now"] == 0
    assert metrics["loss/kl"] > 0
    assert not small.same(before, small.weights(model))


def test_o22_the_logged_kl_is_the_trained_one() -> None:
    config = small.small_config(objective__kl_coef=0.1, optim__steps=1)
    turns, model, reference = _mixed(config), small.model(), small.model(seed=1)
    learner = Learner(config, small.twin(model), small.student(config), reference)
    metrics = learner.learn(0, turns, [], Phases())
    total, tokens = 0.0, 0
    for turn in turns:
        ids, n = [*turn.prompt_ids, *turn.response_ids], len(turn.response_ids)
        with torch.no_grad():
            pair = [
                torch.log_softmax(m(torch.tensor([ids])).logits[0].double(), -1)
                for m in (model, reference)
            ]
        for i in range(len(ids) - n, len(ids)):
            d = float(pair[1][i - 1, ids[i]] - pair[0][i - 1, ids[i]])
            total += min(math.exp(d) - d - 1, 10.0)
            tokens += 1
    assert metrics["loss/kl"] == pytest.approx(total / tokens, rel=1e-4)


def _own_rollouts(config: Config, model: Any) -> list[Any]:
    from trainer.rollout import Episode, PlaySettings
    from trainer.worlds import make_env, split_tasks

    ids = split_tasks(config.env, small.games(), "train")
    episodes = [Episode(ids[i], str(i), f"{i}.{j}", 0, 0, i, j) for i in range(2) for j in range(4)]
    trajectories = play(
        episodes,
        [make_env(config.env, small.games(), "train") for _ in episodes],
        small.student(config),
        HFSampler(model, [small.tokenizer().eos_token_id]),
        PlaySettings(8, config.rollout.temperature),
    )
    return [turn for t in trajectories for turn in t.turns]


def test_o26_ratios_start_at_one_and_the_temperature_is_the_same_everywhere() -> None:
    config = small.small_config(
        rollout__temperature=0.6, optim__steps=1, objective__kl_coef=0.1, objective__dual_clip=None
    )
    model = small.model()
    turns = _own_rollouts(config, model)
    reference = small.twin(model)
    learner = Learner(config, small.twin(model), small.student(config), reference)
    segments = learner.segments(turns)
    recomputed = Learner(
        config.replace(**{"optim.old_logprobs": "recompute"}), model, learner.student, reference
    ).segments(turns)
    scored = learner.reference_logprobs(segments)
    assert scored is not None
    for turn, segment, again, ref in zip(turns, segments, recomputed, scored, strict=True):
        own = [v for v, keep in zip(segment.logprobs, segment.loss_mask, strict=True) if keep]
        new = [v for v, keep in zip(again.logprobs, again.loss_mask, strict=True) if keep]
        assert own == list(turn.logprobs)
        assert own == pytest.approx(new, abs=1e-4)
        assert own == pytest.approx(ref.tolist(), abs=1e-4)
    assert min(turn.logprobs[0] for turn in turns) < -0.5, "temperature must matter here"
    # Outcomes are all equal here, so advantages are put in by hand.
    first = LossStats()
    adv = torch.linspace(-1, 1, len(turns), dtype=torch.float64)
    base = BaseStep(segments, adv, scored)
    learner.step(base, [], first, [])
    second = LossStats()
    learner.step(base, [], second, [])
    before, after = first.metrics(), second.metrics()
    assert before["clip_fraction"] == 0.0
    assert before["kl_old"] == pytest.approx(0.0, abs=1e-8)
    assert before["loss/kl"] == pytest.approx(0.0, abs=1e-8)
    assert after["kl_old"] is not None
    assert after["kl_old"] > 1e-4
    assert after["clip_fraction"] is not None
    assert after["clip_fraction"] > 0


def test_epochs_and_steps_multiply() -> None:
    config = small.small_config(optim__steps=3, optim__epochs=2)
    metrics = _learn(config, _mixed(config), small.model())
    assert metrics["optimizer_steps"] + metrics["skipped_steps"] == 6


def test_advantages_of_a_mixed_group_by_hand() -> None:
    """Two wins of four, one malformed reply: paper flavour, penalty 0.1."""
    from tests.fakes import make_turn

    turns = [
        make_turn(tid="a", t=0, format_valid=False),
        make_turn(tid="a", t=1, done=True, success=True),
        make_turn(tid="b", t=0, done=True, success=True),
        make_turn(tid="c", t=0, done=True),
        # A reward without success, and success without an end, are no win.
        make_turn(tid="d", t=0, done=True, reward=1.0),
        make_turn(tid="d", t=1, success=True),
    ]
    config = small.small_config()
    scores = torch.tensor([9.9, 10.0, 0.0, 0.0], dtype=torch.float64)
    z = (scores - scores.mean()) / (scores.std() + 1e-6)
    expected = torch.stack([z[0], z[0], z[1], z[2], z[3], z[3]])
    torch.testing.assert_close(advantages(turns, config.objective, config.rollout), expected)


def test_constant_groups_can_be_dropped_despite_format_penalties() -> None:
    from tests.fakes import make_turn

    turns = [make_turn(tid=str(i), done=True, format_valid=i > 0) for i in range(3)]
    keep = small.small_config()
    drop = small.small_config(objective__drop_constant_groups=True)
    assert advantages(turns, keep.objective, keep.rollout)[0] < -1
    assert advantages(turns, drop.objective, drop.rollout).tolist() == [0.0, 0.0, 0.0]


def test_partition_is_even_complete_and_keyed() -> None:
    parts = partition(11, 4, stream(0, purpose="a"))
    assert sorted(len(p) for p in parts) == [2, 3, 3, 3]
    assert sorted(i for p in parts for i in p) == list(range(11))
    assert parts == partition(11, 4, stream(0, purpose="a"))
    assert parts != partition(11, 4, stream(0, purpose="b"))
    assert partition(1, 3, stream(0)) in ([[0], [], []], [[], [0], []], [[], [], [0]])


def test_the_task_schedule_is_one_permutation_after_another() -> None:
    ids = [f"t{i}" for i in range(5)]
    flat = [task for i in range(4) for task in tasks_at(ids, 5, 3, i)]
    for epoch in range(4):
        assert sorted(flat[5 * epoch : 5 * epoch + 5]) == ids
    assert flat[:5] != flat[5:10]
    # Cutting it into iterations of another size gives the same sequence.
    assert [task for i in range(10) for task in tasks_at(ids, 2, 3, i)] == flat
    assert tasks_at(ids, 5, 4, 0) != flat[:5]


def test_spread_keeps_ends_and_shares() -> None:
    ids = [f"a{i}" for i in range(6)] + [f"b{i}" for i in range(3)]
    assert spread(ids, 3) == ("a0", "a3", "b0")
    assert spread(ids, None) == spread(ids, 99) == tuple(ids)


def test_bfloat16_acts_and_computes_rounded_and_trains_float32(tmp_path: Path) -> None:
    """A step of 1e-6 would be lost in bfloat16 weights."""
    config = _config(
        tmp_path,
        run__dtype="bfloat16",
        optim__lr=1e-6,
        run__iterations=1,
        auxiliary__name="sero",
        objective__kl_coef=0.01,
        optim__old_logprobs="recompute",
    )
    (metrics,) = train(config, tmp_path / "run").metrics
    assert (metrics["optimizer_steps"], metrics["nonfinite_steps"]) == (2, 0)
    start = small.weights(load_policy(tmp_path / "policy")[0])
    end = small.weights(load_policy(tmp_path / "run/checkpoints/000001")[0])
    assert all(value.dtype == torch.float32 for value in end.values())
    largest = max(float((end[k] - start[k]).abs().max()) for k in start)
    assert 5e-7 < largest < 1e-5
    assert all(v.dtype == torch.bfloat16 for v in _trained(tmp_path / "run").values())


def test_the_acting_bfloat16_policy_is_the_one_that_would_be_loaded(tmp_path: Path) -> None:
    """Also far behind the start of a prompt: rotary frequencies are not rounded."""
    config = _config(tmp_path, run__dtype="bfloat16")
    model, tokenizer = load_policy(tmp_path / "policy")
    trainer = Trainer(config, RunFolder(tmp_path / "run"), model, tokenizer, games=small.games())
    loaded, _ = load_policy(tmp_path / "policy", dtype=torch.bfloat16)
    ids = torch.arange(600)[None] % 300
    with torch.no_grad():
        assert torch.equal(trainer.acting(input_ids=ids).logits, loaded(input_ids=ids).logits)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_and_bfloat16_smoke(tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        run__device="cuda",
        run__dtype="bfloat16",
        run__iterations=2,
        auxiliary__name="sero",
        objective__kl_coef=0.01,
        optim__old_logprobs="recompute",
    )
    result = train(config, tmp_path / "run")
    assert result.metrics[-1]["optimizer_steps"] > 0
    assert result.metrics[-1]["nonfinite_steps"] == 0
