"""SERL weighs the executed command by what the informed teacher thinks of it, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.auxiliary.feedback_context import TITLES, Section
from trainer.config import Config, ConfigError
from trainer.learning.learner import Learner
from trainer.learning.update import BaseStep, LossStats, base_backward, score_segments
from trainer.loop import train
from trainer.methods.privileged import rescored, with_sections
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.methods.reweighting.serl import Serl
from trainer.metrics import Phases, read_metrics
from trainer.models.policy import collate, pad_rows, token_distributions, token_logprobs
from trainer.models.tiny import save_policy
from trainer.rollouts.data import Segment, Turn, read_turns, segments_from_turns, write_turns
from trainer.runs.checkpoint import read_tensors
from trainer.supervised.warmstart import demonstrate, segments, supervised
from trainer.worlds.tasks import make_env, split_tasks

LIMITS = PassLimits(4096, 0)


def _config(**overrides: Any) -> Config:
    return small.small_config(
        **{"env__max_steps": 6, "rollout__rollouts": 4, "auxiliary__serl": {}, **overrides}
    )


def _serl(**section: Any) -> Config:
    return _config(auxiliary__serl=section)


@lru_cache(maxsize=1)
def _turns() -> tuple[Turn, ...]:
    """Turns with mixed outcomes, under log-probs of the policy of the tests."""
    config = _config(rollout__temperature=0.8)
    trajectories = small.rollouts(config, small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert len({turn.success for turn in turns if turn.done}) == 2
    values = score_segments(small.model(), segments_from_turns(turns), LIMITS)
    pairs = zip(turns, values, strict=True)
    return tuple(replace(turn, logprobs=tuple(v.tolist())) for turn, v in pairs)


def _learn(config: Config, model: Any, turns: Sequence[Turn] | None = None) -> dict[str, Any]:
    student = small.student(config)
    learner = Learner(config, model, student, methods=make_methods(Setup(config, student, model)))
    return learner.learn(0, list(_turns() if turns is None else turns), Phases())


def _prepared(
    config: Config, model: Any, iteration: int = 0, turns: Sequence[Turn] | None = None
) -> Serl:
    (method,) = make_methods(Setup(config, small.student(config), model))
    assert isinstance(method, Serl)
    chosen = list(_turns() if turns is None else turns)
    method.prepare(Rollouts(iteration, chosen, segments_from_turns(chosen)), model)
    return method


def _step(turns: Sequence[int], iteration: int = 0) -> Step:
    return Step(iteration, 0, 0, 1, tuple(turns))


def _command(turn: Turn) -> tuple[bool, ...]:
    return small.student().command_mask(turn.response_ids)


def _told(turn: Turn) -> Segment:
    """The reply behind the prompt that the default source makes."""
    section = Section(TITLES["feedback"], turn.next_observation.strip())
    prompt = with_sections(small.student(), turn, [section], max_tokens=512)
    assert prompt.on
    return rescored(turn, prompt)


def _moved(model: Any, scale: float = 0.02) -> Any:
    other = small.twin(model)
    stream = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=stream))
    return other


def _adjusted(method: Serl, adv: Sequence[float], new_B_T: Tensor, chosen: Sequence[int]) -> Tensor:
    """What the term makes of constant advantages."""
    term = method.token_term(_step(chosen))
    assert term is not None
    batch = collate(segments_from_turns([_turns()[i] for i in chosen]))
    adv_B_T = torch.tensor(adv)[:, None] * batch.mask_B_T
    return term.advantages(adv_B_T, new_B_T, batch, chosen)


# -------------------------------------------------------------------------- the reweighting


def test_the_command_alone_is_reweighted_by_teacher_against_the_current_policy() -> None:
    """A~ = A * (1 + alpha * (clip(exp(sgn(A) * (T - S))) - 1)), token by token, by hand."""
    model = small.model()
    method = _prepared(_serl(alpha=0.4, clip=0.3), model)
    chosen = [0, 3, 7]
    turns = [_turns()[i] for i in chosen]
    current = score_segments(_moved(model), segments_from_turns(turns), LIMITS)
    teacher = score_segments(model, [_told(turn) for turn in turns], LIMITS)
    adv = [1.5, -0.5, 0.0]
    found = _adjusted(method, adv, pad_rows([v.tolist() for v in current], torch.float32), chosen)
    changed = 0
    for b, turn in enumerate(turns):
        for j, inside in enumerate(_command(turn)):
            delta = float(teacher[b][j]) - float(current[b][j])
            u = math.exp(delta) if adv[b] > 0 else math.exp(-delta)
            factor = 1 + 0.4 * (min(max(u, 0.7), 1.3) - 1) if inside else 1.0
            assert float(found[b, j]) == pytest.approx(adv[b] * factor, rel=1e-4), (b, j)
            changed += factor != 1.0
    assert changed >= 4
    assert not any(found[2]), "nothing comes of an advantage of 0"
    metrics = method.metrics()
    assert metrics["serl/alpha"] == 0.4
    assert metrics["serl/row_coverage"] == 1.0
    assert 0.7 <= metrics["serl/u_mean"] <= 1.3


def test_delta_follows_the_policy_as_it_is() -> None:
    model = small.model()
    method = _prepared(_serl(), model)
    same = pad_rows([method.scored[0].logprobs.tolist()], torch.float32)
    assert torch.equal(_adjusted(method, [1.0], same, [0]), torch.ones_like(same))
    inside = torch.tensor([_command(_turns()[0])])
    lower = _adjusted(method, [1.0], same - 1.0, [0])
    assert torch.allclose(lower[inside], torch.tensor(1.1))
    assert torch.equal(lower[~inside], torch.ones_like(lower[~inside]))
    higher = _adjusted(method, [-1.0], same - 1.0, [0])
    assert torch.allclose(higher[inside], torch.tensor(-0.9)), "blame for what was right is less"


def test_a_policy_that_is_no_longer_finite_is_left_to_the_optimiser() -> None:
    method = _prepared(_serl(), small.model())
    width = max(len(_turns()[i].response_ids) for i in (0, 1))
    new = torch.full((2, width), -1.0)
    new[1, 0] = math.nan
    found = _adjusted(method, [1.0, 1.0], new, [0, 1])
    size = len(_turns()[1].response_ids)
    assert torch.equal(found[1, :size], torch.ones(size))
    assert not torch.equal(found[0, : len(_command(_turns()[0]))], torch.ones(1))


def test_rows_nobody_sampled_here_stay_as_they_are() -> None:
    """Joined turns have indices beyond the rollouts'."""
    method = _prepared(_serl(), small.model())
    term = method.token_term(_step([0, 999]))
    assert term is not None
    batch = collate(segments_from_turns([_turns()[0], _turns()[1]]))
    adv = torch.ones(batch.mask_B_T.shape) * batch.mask_B_T
    found = term.advantages(adv, batch.old_B_T - 1.0, batch, [0, 999])
    assert torch.equal(found[1], adv[1])
    assert not torch.equal(found[0], adv[0])
    assert method.token_term(_step([999])) is None


# -------------------------------------------------------------------------- nothing to do


@pytest.mark.parametrize(
    "case", ["weight_zero", "alpha_zero", "clip_zero", "no_context", "no_command"]
)
def test_with_nothing_to_say_parameters_are_bit_identical_to_the_base(case: str) -> None:
    turns = list(_turns())
    section: dict[str, Any] = {
        "weight_zero": {"weight": 0.0, "act_weight": 0.5},
        "alpha_zero": {"alpha": 0.0},
        "clip_zero": {"clip": 0.0},
        "no_context": {"source": "success_or_feedback"},
        "no_command": {},
    }[case]
    if case == "no_context":
        turns = [replace(turn, next_observation=" ", success=False, reward=0.0) for turn in turns]
        turns = [replace(turn, format_valid=i % 2 == 0) for i, turn in enumerate(turns)]
    if case == "no_command":
        end = small.tokenizer().eos_token_id
        turns = [replace(t, response_ids=(t.response_ids[0], end), logprobs=(-1.0, -1.0))
                 for t in turns]  # fmt: skip
    start, base, ours = small.model(), small.model(), small.model()
    _learn(_config(auxiliary__serl=None), base, turns)
    metrics = _learn(_serl(**section), ours, turns)
    assert not small.same(small.weights(start), small.weights(base))
    assert small.same(small.weights(base), small.weights(ours))
    assert metrics["loss/auxiliary"] is None
    measured = case in ("weight_zero", "clip_zero")
    assert (metrics["serl/delta_abs_mean"] is not None) == measured
    assert metrics["serl/act_loss"] is None
    if case == "no_context":
        assert metrics["serl/row_coverage"] == 0.0
    if case == "no_command":
        assert metrics["serl/parse_failure"] == 1.0
        assert metrics["serl/row_coverage"] == 1.0


def test_with_something_to_say_parameters_differ() -> None:
    base, ours, weak = small.model(), small.model(), small.model()
    _learn(_config(auxiliary__serl=None), base)
    metrics = _learn(_serl(), ours)
    _learn(_serl(weight=0.5), weak)
    assert not small.same(small.weights(base), small.weights(ours))
    assert not small.same(small.weights(weak), small.weights(ours))
    assert metrics["serl/alpha"] == 0.5
    assert metrics["serl/delta_abs_mean"] > 0
    assert 0 < metrics["serl/clipped_fraction"] <= 1


class _Counting:
    """Counts the segments that are scored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[Segment] = []
        monkeypatch.setattr("trainer.methods.reweighting.base.score_segments", self)

    def __call__(self, model: Any, segments: Sequence[Segment], limits: PassLimits) -> list[Tensor]:
        self.segments += segments
        return score_segments(model, segments, limits)


def test_the_teacher_reads_rows_that_have_a_context_and_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, model = _Counting(monkeypatch), small.model()
    turns = list(_turns())
    end = small.tokenizer().eos_token_id
    turns[0] = replace(turns[0], next_observation="")
    turns[1] = replace(turns[1], response_ids=(end,), logprobs=(-1.0,))
    method = _prepared(_serl(), model, turns=turns)
    assert set(method.scored) == set(range(2, len(turns)))
    assert len(seen.segments) == len(turns) - 2
    for segment, turn in zip(seen.segments, turns[2:], strict=True):
        assert segment.ids == _told(turn).ids
        assert segment.temperature == turn.temperature
    metrics = method.metrics()
    n = len(turns)
    assert metrics["serl/row_coverage"] == pytest.approx((n - 1) / n)
    assert metrics["serl/parse_failure"] == pytest.approx(1 / n)
    assert metrics["serl/truncated_fraction"] == 0.0
    masks = [_command(turn) for turn in turns]
    assert metrics["serl/action_token_fraction"] == pytest.approx(
        sum(map(sum, masks)) / sum(map(len, masks))
    )
    assert metrics["serl/u_mean"] is None, "nothing was weighed yet"


def test_turns_that_the_base_leaves_out_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _Counting(monkeypatch)
    _learn(_config(objective__mask_truncated=True), small.model())
    ended = {(t.uid, t.tid) for t in _turns() if t.done and t.stop_reason != "step_limit"}
    kept = [t for t in _turns() if (t.uid, t.tid) in ended]
    assert 0 < len(kept) < len(_turns())
    assert len(seen.segments) == len(kept)


def test_alpha_decays_with_iterations_and_the_teacher_rests_at_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, model = _Counting(monkeypatch), small.model()
    config = _serl(decay=4, weight=0.5)
    for iteration, alpha in ((0, 0.25), (1, 0.1875), (3, 0.0625)):
        method = _prepared(config, model, iteration)
        assert method.metrics()["serl/alpha"] == alpha
        assert method.scored
    count = len(seen.segments)
    method = _prepared(config, model, 4)
    assert len(seen.segments) == count
    assert method.token_term(_step(range(5), 4)) is None
    assert method.metrics()["serl/alpha"] == 0.0
    assert method.metrics()["serl/row_coverage"] is None
    assert _prepared(_serl(decay=0), model, 10_000).metrics()["serl/alpha"] == 0.5


def test_figures_are_of_all_micro_batches() -> None:
    config = _config(optim__steps=1, auxiliary__serl={"act_weight": 0.1})
    whole, cut = (
        _learn(config.replace(**{"optim.micro_batch_tokens": tokens}), small.model())
        for tokens in (10**6, 300)
    )
    for name in ("delta_abs_mean", "clipped_fraction", "u_mean", "act_loss"):
        assert cut[f"serl/{name}"] == pytest.approx(whole[f"serl/{name}"], rel=1e-4), name


def test_a_short_limit_shortens_what_the_teacher_is_told() -> None:
    turns = [replace(turn, next_observation="you see a lamp. " * 60) for turn in _turns()]
    turns[0] = replace(turns[0], next_observation="")
    longest = max(len(turn.prompt_ids) for turn in turns)
    method = _prepared(_serl(max_prompt_tokens=longest + 80), small.model(), turns=turns)
    assert method.metrics()["serl/truncated_fraction"] == 1.0
    assert method.scored
    assert all(len(row.prompt.ids) <= longest + 81 for row in method.scored.values())
    none = _prepared(_serl(max_prompt_tokens=longest), small.model(), turns=turns).metrics()
    assert none["serl/row_coverage"] < 1.0
    assert none["serl/truncated_fraction"] == 1.0


# -------------------------------------------------------------------------- the teacher


def test_the_teacher_gets_no_gradient_and_follows_every_so_many_iterations() -> None:
    model = small.model()
    method = _prepared(_serl(sync_every=2, act_weight=0.1, act_kind="rkl"), model)
    config = method.setup.config
    learner = Learner(config, model, small.student(config), methods=[method])
    teacher = method.teacher.of(model)
    start = small.weights(teacher)
    learner.learn(0, list(_turns()), Phases())
    assert small.same(small.weights(teacher), start)
    assert not small.same(small.weights(model), start)
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    learner.learn(1, list(_turns()), Phases())
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
    method = _prepared(config, model)
    policy = _moved(model)
    step = _step(range(len(_turns())))
    limits = PassLimits(tokens, 0)
    term = method.token_term(step)
    rows = segments_from_turns(_turns())
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
    turns, teacher_model = _turns(), small.model()
    own = collate(segments_from_turns(turns))
    told = collate([_told(turn) for turn in turns])
    mask = pad_rows([_command(turn) for turn in turns], torch.bool, width=own.mask_B_T.shape[1])
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
    found, method, policy = _act_gradient(_serl(**section))
    policy.zero_grad()
    expected = _expected(kind, policy)
    (0.4 * expected).backward()
    assert float(_gradient(policy).abs().max()) > 1e-3
    torch.testing.assert_close(found, _gradient(policy), rtol=1e-3, atol=1e-5)
    assert method.metrics()["serl/act_loss"] == pytest.approx(float(expected.detach()), rel=1e-3)


@pytest.mark.parametrize("kind", ["pg_rkl", "js"])
def test_micro_batches_change_nothing(kind: str) -> None:
    config = _serl(act_kind=kind, act_weight=0.5)
    whole, cut = (_act_gradient(config, tokens)[0] for tokens in (10**9, 300))
    torch.testing.assert_close(cut, whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["pg_rkl", "k3", "rkl", "js"])
def test_commands_move_towards_what_the_teacher_would_say(kind: str) -> None:
    """With no base objective: S - T shrinks on the tokens that were compared."""
    config = _config(
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
    told = [_told(turn) for turn in _turns()]
    masks = [torch.tensor(_command(turn)) for turn in _turns()]
    goal = score_segments(model, told, LIMITS)

    def tokens() -> Tensor:
        own = score_segments(model, segments_from_turns(_turns()), LIMITS)
        return torch.cat([v[m] for v, m in zip(own, masks, strict=True)])

    gap = torch.cat([v[m] for v, m in zip(goal, masks, strict=True)]) - tokens()
    before = tokens()
    metrics = _learn(config, model)
    assert float((gap * (tokens() - before)).mean()) > 0
    if kind in ("pg_rkl", "k3"):
        assert metrics["loss/auxiliary"] is None
    else:
        assert metrics["loss/serl"] == pytest.approx(0.5 * metrics["serl/act_loss"])
    assert metrics["serl/act_loss"] is not None


def test_the_distillation_term_decays_with_alpha() -> None:
    for kind in ("pg_rkl", "rkl"):
        config = _serl(act_weight=0.5, act_kind=kind, decay=4, alpha=0.0)
        assert _prepared(config, small.model(), 1).act_scale == 0.375
        gone = _prepared(config, small.model(), 4)
        assert gone.act_scale == 0.0
        assert not gone.has_pass(_step(range(5), 4))
    method = _prepared(_serl(), small.model())
    assert not method.has_pass(_step(range(5))), "the default is without it"
    sampled_term = _prepared(_serl(act_weight=0.1), small.model())
    assert not sampled_term.has_pass(_step(range(5)))
    term = sampled_term.token_term(_step(range(5)))
    assert term is not None
    assert term.needs(0)
    assert not term.needs(999)
    plain = _prepared(_serl(), small.model()).token_term(_step(range(5)))
    assert plain is not None
    assert not plain.needs(0)


# -------------------------------------------------------------------------- rewards still rule


def test_a_win_becomes_likelier_and_a_failure_less_likely() -> None:
    config = _config(optim__lr=1e-3, optim__steps=1, auxiliary__serl={"alpha": 1.0})
    won = {(t.uid, t.tid) for t in _turns() if t.done and t.success}
    mixed_groups = {t.uid for t in _turns() if (t.uid, t.tid) not in won} & {u for u, _ in won}
    rows = [t for t in _turns() if t.uid in mixed_groups]
    signs = torch.tensor([1.0 if (t.uid, t.tid) in won else -1.0 for t in rows])
    model = small.model()

    def logps() -> Tensor:
        return torch.stack(
            [v.sum() for v in score_segments(model, segments_from_turns(rows), LIMITS)]
        )

    before = logps()
    _learn(config, model)
    change = logps() - before
    assert float((signs * change).sum()) > 0


def test_turns_from_a_file_give_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_turns(tmp_path / "turns.parquet", list(_turns()))
    read = read_turns(tmp_path / "turns.parquet")
    config = _serl(source="success+next_observation", placement="anchor", act_weight=0.1)
    left, right = small.model(), small.model()
    ran, again = _learn(config, left), _learn(config, right, read)
    assert small.untimed(ran) == small.untimed(again)
    assert small.same(small.weights(left), small.weights(right))


# -------------------------------------------------------------------------- what it refuses


def test_a_judge_by_name_is_asked() -> None:
    place = "tests.trainer.methods.test_feedback:reviewer"
    method = _prepared(_serl(source="judge_current", judge=place), small.model())
    assert set(method.scored) == set(range(len(_turns())))
    text = small.tokenizer().decode(list(method.scored[0].prompt.ids))
    assert "It walked away from the goal." in text
    with pytest.raises(ConfigError, match=r"auxiliary\.serl\.judge='nowhere:at_all'"):
        _prepared(_serl(source="judge_current", judge="nowhere:at_all"), small.model())
