"""The value model: what it sees, what it learns, what it never touches."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fakes import TableModel
from tests.trainer import small
from tests.trainer.hand_turns import hand
from tests.trainer.short_runs import mixed, run_config, sampled, trained, untimed
from trainer.config import Config, ConfigError
from trainer.learning.base_advantages import BaseAdvantages
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.metrics import Phases, read_metrics
from trainer.models.critic import Critic, ValueModel, make_critic
from trainer.models.policy import collate
from trainer.rollouts.data import make_segment, segments_from_turns
from trainer.runs.checkpoint import CheckpointError, load_checkpoint

LIMITS = PassLimits(4096, 0)


def ppo(**changes: Any) -> Config:
    return small.small_config(
        **{"objective__name": "ppo", "objective__critic__lr": 1e-2, "rollout__rollouts": 4,
           "env__max_steps": 8, **changes}
    )  # fmt: skip


def knowing(config: Config, policy: Any, seed: int = 0) -> Critic:
    """A critic whose head is not 0, so that what it says depends on what it sees."""
    critic = make_critic(config, policy)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        critic.model.head.weight.copy_(
            torch.randn(critic.model.head.weight.shape, generator=generator)
        )
        critic.model.head.bias.fill_(0.5)
    return critic


def everywhere(targets: Sequence[Tensor]) -> BaseAdvantages:
    masks = [torch.ones(len(row), dtype=torch.bool) for row in targets]
    return BaseAdvantages(list(targets), list(targets), masks)


# ------------------------------------------------------------------------------ what it says


def test_a_value_is_that_of_the_state_before_its_token() -> None:
    """The head on the body's last hidden state at the token before; the token is not seen."""
    config, policy = ppo(), small.model()
    critic = knowing(config, policy)
    head = critic.model.head
    segments = segments_from_turns(mixed(config)[:4])
    for segment, found in zip(segments, critic.values(segments, LIMITS), strict=True):
        ids = torch.tensor([segment.ids])
        with torch.no_grad():
            hidden = policy.model(input_ids=ids).last_hidden_state[0]
        before = [i - 1 for i, keep in enumerate(segment.loss_mask) if keep]
        want = hidden[before] @ head.weight[0].detach() + head.bias.detach()
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        assert found.dtype == torch.float32
    prompt, reply = segments[0].ids[:-3], segments[0].ids[-3:]
    one = make_segment(prompt, reply)
    other = make_segment(prompt, (*reply[:-1], reply[-1] + 1))
    (a,), (b,) = critic.values([one], LIMITS), critic.values([other], LIMITS)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5, msg="the last token is in no state")
    later = make_segment(prompt, (reply[0] + 1, *reply[1:]))
    (c,) = critic.values([later], LIMITS)
    assert float(c[0]) == pytest.approx(float(a[0]), abs=1e-5)
    assert not torch.allclose(c[1:], a[1:], atol=1e-2)


def test_values_skip_what_is_not_trained_and_know_no_cut() -> None:
    config = ppo()
    critic = knowing(config, small.model())
    mask = (True, False, True, True)
    prompts = [(5, 6, 7), (5, 6, 7, 8, 9, 10), (11, 12)]
    whole = [make_segment(p, (21, 22, 23, 24)) for p in prompts]
    holes = [make_segment(p, (21, 22, 23, 24), mask=mask) for p in prompts]
    nothing = make_segment((1, 2), (3,), mask=(False,))
    full = critic.values(whole, LIMITS)
    for row, part in zip(full, critic.values(holes, LIMITS), strict=True):
        torch.testing.assert_close(part, row[[0, 2, 3]], rtol=1e-5, atol=1e-5)
    assert critic.values([nothing], LIMITS)[0].shape == (0,)
    for tokens in (1, 20):
        for row, again in zip(full, critic.values(whole, PassLimits(tokens, 0)), strict=True):
            torch.testing.assert_close(again, row, rtol=1e-5, atol=1e-5)


def test_nothing_is_known_at_first_and_no_global_draw_is_made() -> None:
    config, policy = ppo(), small.model()
    state = torch.get_rng_state()
    critic = make_critic(config, policy)
    values = critic.values(segments_from_turns(mixed(config)[:3]), LIMITS)
    assert torch.equal(torch.get_rng_state(), state)
    assert all((row == 0).all() for row in values)
    assert small.same(small.weights(critic.model.backbone), small.weights(policy))


def test_bfloat16_rounds_the_body_and_not_the_head() -> None:
    config = ppo()
    critic = knowing(config, small.model())
    with torch.no_grad():
        critic.model.head.bias.fill_(1000.0)
    segments = segments_from_turns(mixed(config)[:4])
    exact = torch.cat(critic.values(segments, LIMITS))
    rounded = torch.cat(critic.values(segments, PassLimits(4096, 0, bf16=True)))
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.5)
    # Near 1000 bfloat16 knows multiples of 4 only.
    assert float((rounded - 4 * (rounded / 4).round()).abs().max()) > 0.1


def test_a_policy_that_hides_its_states_is_refused() -> None:
    class Hidden(TableModel):
        config = type("C", (), {"hidden_size": 4})()

    model = ValueModel(Hidden(torch.zeros(1, 3, 5)))
    with pytest.raises(ConfigError, match=r"Hidden does not say where.*without a critic"):
        model(collate([make_segment((1,), (2, 3))]))


# ------------------------------------------------------------------------------ what it learns


def test_value_regression_converges() -> None:
    """Targets are +1 after one prompt and -2 after another; the critic learns to tell."""
    config = ppo(objective__critic__lr=3e-2, objective__critic__clip=0.5, optim__grad_clip=0.0)
    critic = make_critic(config, small.model())
    segments = [make_segment((5, 6, 7 + i % 2), (21, 22, 23)) for i in range(6)]
    targets = [torch.full((3,), (1.0, -2.0)[i % 2], dtype=torch.float64) for i in range(6)]
    losses = []
    for _ in range(60):
        values = critic.values(segments, LIMITS)
        critic.learn(range(6), segments, everywhere(targets), values, LIMITS)
        losses.append(critic.metrics()["loss/value"])
    assert losses[0] == pytest.approx(2.5, rel=1e-5), "(1 + 4) / 2, without a factor 1/2"
    found = torch.cat(critic.values(segments, LIMITS))
    torch.testing.assert_close(found.double(), torch.cat(targets), rtol=0, atol=0.1)
    assert losses[-1] is not None
    assert losses[-1] < 1e-2


def test_a_value_stops_once_it_has_moved_by_the_clip() -> None:
    config = ppo(objective__critic__clip=0.25, optim__grad_clip=0.0)
    critic = make_critic(config, small.model())
    segments = [make_segment((5, 6, 7), (21, 22))]
    target = everywhere([torch.full((2,), 9.0, dtype=torch.float64)])
    values = critic.values(segments, LIMITS)
    for _ in range(40):
        critic.learn([0], segments, target, values, LIMITS)
    metrics = critic.metrics()
    assert metrics["critic/clip_fraction"] is not None
    assert metrics["critic/clip_fraction"] > 0.3
    (found,) = critic.values(segments, LIMITS)
    # AdamW's momentum carries it past the border, its gradient ends there.
    assert 0.25 <= float(found.max()) < 3.0
    # By hand: old 0, value 0.4, target 1; with the clip at 0.25 the larger term is 0.75^2.
    with torch.no_grad():
        critic.model.head.weight.zero_()
        critic.model.head.bias.fill_(0.4)
    critic.values(segments, LIMITS)
    one = everywhere([torch.ones(2, dtype=torch.float64)])
    critic.learn([0], segments, one, values, LIMITS)
    assert critic.metrics()["loss/value"] == pytest.approx(0.75**2)


@pytest.mark.parametrize("tokens", [1, 60])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_o23_the_cut_of_the_batch_changes_no_value_gradient(
    tokens: int, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hand()
    config = ppo(objective__aggregation=aggregation, objective__critic__lr=0.0)
    segments = segments_from_turns(made.turns)
    targets = [torch.linspace(-3, 3, s.trained, dtype=torch.float64) for s in segments]
    values = [torch.zeros(s.trained) for s in segments]
    seen = []
    for size in (10**9, tokens):
        critic = knowing(config, small.model())
        parameters, gradient = list(critic.model.parameters()), []

        def keep(gradient: list[Tensor] = gradient, parameters: Any = parameters) -> None:
            gradient.extend(p.grad.flatten() for p in parameters if p.grad is not None)

        monkeypatch.setattr(critic.optimizer, "step", keep)
        limits = PassLimits(size, 0)
        critic.learn(range(len(segments)), segments, everywhere(targets), values, limits)
        seen.append((torch.cat(gradient), critic.metrics()["loss/value"]))
    assert seen[0][0].abs().max() > 1e-3
    torch.testing.assert_close(seen[1][0], seen[0][0], rtol=1e-4, atol=1e-6)
    assert seen[1][1] == pytest.approx(seen[0][1], rel=1e-5)


def test_only_tokens_with_a_target_are_trained() -> None:
    """`turn_gae`: the first token of each turn. What the others' targets hold never matters."""
    config = ppo(objective__name="turn_gae")
    segments = [make_segment((5, 6), (21, 22, 23)), make_segment((8, 9, 3), (24, 25))]
    first = [torch.tensor([True, False, False]), torch.tensor([True, False])]

    def learnt(rest: float) -> dict[str, Tensor]:
        critic = knowing(config, small.model())
        targets = [torch.tensor([4.0, rest, rest]).double(), torch.tensor([-1.0, rest]).double()]
        values = critic.values(segments, LIMITS)
        critic.learn([0, 1], segments, BaseAdvantages(targets, targets, first), values, LIMITS)
        error = torch.tensor([float(values[0][0]) - 4.0, float(values[1][0]) + 1.0]).square()
        assert critic.metrics()["loss/value"] == pytest.approx(float(error.mean()), rel=1e-5)
        return small.weights(critic.model)

    assert small.same(learnt(0.0), learnt(1e30))
    critic = knowing(config, small.model())
    before = small.weights(critic.model)
    nobody = [torch.zeros(3, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)]
    targets = [torch.ones(3).double(), torch.ones(2).double()]
    values = critic.values(segments, LIMITS)
    critic.learn([0, 1], segments, BaseAdvantages(targets, targets, nobody), values, LIMITS)
    critic.learn([], segments, everywhere(targets), values, LIMITS)
    assert small.same(before, small.weights(critic.model))
    assert critic.optimizer.state == {}
    metrics = critic.metrics()
    assert metrics.pop("critic/nonfinite_steps") == 0
    assert set(metrics.values()) == {None}
    with pytest.raises(ValueError, match="no targets"):
        critic.learn([0], segments, BaseAdvantages(targets), values, LIMITS)


def test_the_explained_variance_is_that_of_the_values_before() -> None:
    config = ppo()
    critic = make_critic(config, small.model())
    segments = [make_segment((5, 6), (21, 22)), make_segment((8, 9, 3), (24, 25))]
    targets = everywhere([torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 6.0]).double()])
    values = [torch.tensor([0.0, 2.0]), torch.tensor([2.0, 4.0])]
    for _ in range(2):
        critic.learn([0, 1], segments, targets, values, LIMITS)
    # errors 1, 0, 1, 2: variance 2/3; targets 1, 2, 3, 6: variance 14/3
    assert critic.metrics()["critic/explained_variance"] == pytest.approx(1 - 2 / 14)
    critic.values(segments, LIMITS)
    assert critic.metrics()["critic/explained_variance"] is None, "an iteration begins anew"


def test_the_gradient_is_clipped_and_one_that_is_not_finite_refused() -> None:
    segments = [make_segment((5, 6), (21, 22))]
    targets = everywhere([torch.tensor([1e4, 1e4]).double()])

    def stepped(clip: float) -> float:
        """Largest first moment after one step, 0.1 times the clipped gradient."""
        critic = knowing(ppo(optim__grad_clip=clip), small.model())
        critic.learn([0], segments, targets, critic.values(segments, LIMITS), LIMITS)
        moments = [state["exp_avg"] for state in critic.optimizer.state.values()]
        return 10 * math.sqrt(sum(float(m.double().square().sum()) for m in moments))

    assert stepped(1.0) == pytest.approx(1.0, rel=1e-4)
    assert stepped(0.0) > 1e3
    critic = knowing(ppo(), small.model())
    before = small.weights(critic.model)
    infinite = everywhere([torch.tensor([1.0, math.inf]).double()])
    with pytest.raises(ValueError, match="NaN or infinite"):
        critic.learn([0], segments, infinite, critic.values(segments, LIMITS), LIMITS)
    values = critic.values(segments, LIMITS)
    with torch.no_grad():
        critic.model.head.bias.fill_(math.nan)
    critic.learn([0], segments, targets, values, LIMITS)
    after = small.weights(critic.model)
    assert all(torch.equal(before[k], after[k]) for k in before if k != "head.bias")
    assert critic.optimizer.state == {}
    critic.learn([0], segments, targets, values, LIMITS)
    assert critic.metrics()["critic/nonfinite_steps"] == 2
    with torch.no_grad():
        critic.model.head.bias.fill_(0.5)
    values = critic.values(segments, LIMITS)
    critic.learn([0], segments, targets, values, LIMITS)
    assert critic.optimizer.state != {}
    assert critic.metrics()["critic/nonfinite_steps"] == 0, "an iteration begins anew"


def test_a_frozen_embedding_stays_and_costs_no_moments() -> None:
    config, policy = ppo(), small.model()
    policy.get_input_embeddings().weight.requires_grad_(False)
    critic = knowing(config, policy)
    assert critic.config.lr == 1e-2
    segments = segments_from_turns(hand().turns)
    values = critic.values(segments, LIMITS)
    targets = everywhere([torch.ones(s.trained).double() for s in segments])
    before = small.weights(critic.model)
    critic.learn(range(len(segments)), segments, targets, values, LIMITS)
    after, moved = small.weights(critic.model), set()
    for name, value in before.items():
        if not torch.equal(value, after[name]):
            moved.add(name)
    assert not any("embed_tokens" in name or "lm_head" in name for name in moved)
    assert {"head.weight", "head.bias"} < moved
    assert not any("embed_tokens" in key for key in critic.state() if not key.startswith("model/"))
    again = make_critic(config, policy)
    again.load_state(critic.state())
    assert small.same(small.weights(again.model), after)


# ------------------------------------------------------------------------------ beside the policy


def _learnt(config: Config, turns: Sequence[Any], iterations: int = 1) -> tuple[Any, Any, Critic]:
    model = small.model()
    critic = make_critic(config, model)
    learner = Learner(config, model, small.student(config), critic=critic)
    metrics = None
    for iteration in range(iterations):
        metrics = learner.learn(iteration, turns, Phases())
    return metrics, model, critic


def test_the_policy_gets_no_gradient_from_the_critic() -> None:
    few = {"rollout__rollouts": 2, "env__max_steps": 6}
    turns = mixed(ppo(**few))
    start = small.weights(small.model())
    for name in ("ppo", "ppo_trajectory", "turn_gae"):
        metrics, moved, critic = _learnt(ppo(objective__name=name), turns)
        _, still, frozen = _learnt(ppo(objective__name=name, objective__critic__lr=0.0), turns)
        assert small.same(small.weights(moved), small.weights(still)), name
        assert not small.same(start, small.weights(moved))
        assert not small.same(small.weights(critic.model), small.weights(frozen.model))
        assert all(p.grad is None for p in moved.parameters())
        own = {id(p) for p in moved.parameters()}
        assert not own & {id(p) for p in critic.model.parameters()}
        assert metrics["loss/value"] > 0
        json.dumps(metrics, allow_nan=False)
    # In the second iteration advantages are made of what the critic has learnt.
    _, moved, _ = _learnt(ppo(), turns, 2)
    _, still, _ = _learnt(ppo(objective__critic__lr=0.0), turns, 2)
    assert not small.same(small.weights(moved), small.weights(still))


def test_first_iterations_can_train_the_critic_alone() -> None:
    turns = mixed(ppo())[:12]
    config = ppo(objective__critic__warmup_iterations=2)
    start = small.weights(small.model())
    metrics, policy, critic = _learnt(config, turns, 2)
    assert small.same(start, small.weights(policy))
    assert (metrics["optimizer_steps"], metrics["skipped_steps"]) == (0, 4)
    assert metrics["loss/policy"] is None
    assert not small.same(start, small.weights(critic.model.backbone))
    _, policy, _ = _learnt(config, turns, 3)
    assert not small.same(start, small.weights(policy))


def test_a_learner_without_its_critic_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective\.name=ppo needs a critic"):
        Learner(ppo(), small.model(), small.student(ppo()))


def test_o25_resume_is_a_continuation_with_a_critic(tmp_path: Path) -> None:
    config = run_config(
        tmp_path, run__iterations=4, objective__name="ppo", objective__critic__lr=1e-2,
        objective__critic__warmup_iterations=1, rollout__rollouts=1, env__max_steps=3,
        rollout__max_new_tokens=12,
    )  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=2)
    train(config, parts, resume=True)
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert sampled(whole) == sampled(parts)
    assert small.same(trained(whole), trained(parts))
    assert straight.metrics[-1]["loss/value"] is not None
    left, right = (load_checkpoint(p / "checkpoints/000004") for p in (whole, parts))
    assert left.state == right.state
    a, b = ((p.path / "critic.safetensors").read_bytes() for p in (left, right))
    assert a == b
    first = (parts / "checkpoints/000002/critic.safetensors").read_bytes()
    assert first != a, "it goes on learning"


def test_a_run_in_bfloat16_trains_a_float32_critic(tmp_path: Path) -> None:
    config = run_config(
        tmp_path, run__iterations=1, objective__name="turn_gae", rollout__rollouts=1,
        env__max_steps=2, run__dtype="bfloat16", optim__old_logprobs="recompute",
    )  # fmt: skip
    (metrics,) = train(config, tmp_path / "run").metrics
    assert metrics["loss/value"] is not None
    tensors = load_file(tmp_path / "run/checkpoints/000001/critic.safetensors")
    assert all(value.dtype == torch.float32 for value in tensors.values())
    assert float(tensors["model/head.weight"].abs().max()) > 0


@pytest.mark.parametrize("case", ["flip", "missing", "other", "unlisted"])
def test_o25_a_damaged_critic_is_named(tmp_path: Path, case: str) -> None:
    config = run_config(
        tmp_path, run__iterations=1, objective__name="ppo", rollout__rollouts=1, env__max_steps=2
    )
    train(config, tmp_path / "run")
    file = tmp_path / "run/checkpoints/000001/critic.safetensors"
    manifest = file.parent / "manifest.json"
    listed = json.loads(manifest.read_text())
    if case == "flip":
        file.write_bytes(file.read_bytes()[:-1] + b"\xaa")
    else:
        if case == "other":
            tensors = load_file(file)
            del tensors["model/head.bias"]
            save_file(tensors, file)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            listed["files"][file.name]["sha256"] = digest
        else:
            file.unlink()
        if case == "unlisted":
            del listed["files"][file.name]
        manifest.write_text(json.dumps(listed))
    message = {
        "flip": r"critic\.safetensors is corrupt", "missing": r"critic\.safetensors is missing",
        "other": r"critic\.safetensors: it holds the parameters of another critic",
        "unlisted": r"critic\.safetensors cannot be read",
    }[case]  # fmt: skip
    with pytest.raises(CheckpointError, match=message):
        train(config.replace(**{"run.iterations": 2}), tmp_path / "run", resume=True)
