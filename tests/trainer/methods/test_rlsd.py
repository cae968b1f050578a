"""RLSD weighs every token by what a teacher with a solution thinks, once an iteration."""

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

from oracles.base import Plan, PlanStatus
from tests.fakes import make_turn
from tests.trainer import small
from trainer.config import Config, ConfigError, load_config
from trainer.config.auxiliary import RlsdConfig
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits, Rollouts, Setup
from trainer.methods.registry import make_methods
from trainer.methods.reweighting.rlsd import PLAN_TITLE, Rlsd
from trainer.metrics import Phases
from trainer.rollouts.data import Turn, read_turns, segments_from_turns, write_turns
from trainer.worlds.environments import WEBSHOP
from trainer.worlds.tasks import make_env, open_tasks

LIMITS = PassLimits(4096, 0)


def _config(section: dict[str, Any] | None = None, **overrides: Any) -> Config:
    return small.small_config(
        **{"rollout__rollouts": 4, "auxiliary__rlsd": section or {}, **overrides}
    )


@lru_cache(maxsize=1)
def _turns() -> tuple[Turn, ...]:
    """Turns with mixed outcomes, under log-probs of the policy of the tests."""
    trajectories = small.rollouts(_config(), small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    values = score_segments(small.model(), segments_from_turns(turns), LIMITS)
    pairs = zip(turns, values, strict=True)
    return tuple(replace(turn, logprobs=tuple(v.tolist())) for turn, v in pairs)


def _made(config: Config, model: Any, *, env: bool = False) -> Rlsd:
    def new_env() -> Any:
        return make_env(config.env, small.games(), "train")

    setup = Setup(config, small.student(config), model, new_env if env else None)
    (method,) = make_methods(setup)
    assert isinstance(method, Rlsd)
    return method


def _prepared(
    config: Config, model: Any, turns: Sequence[Turn] | None = None, *, env: bool = False
) -> Rlsd:
    method = _made(config, model, env=env)
    chosen = list(_turns() if turns is None else turns)
    method.prepare(Rollouts(0, chosen, segments_from_turns(chosen)), model)
    return method


def _learn(config: Config, model: Any, turns: Sequence[Turn] | None = None) -> dict[str, Any]:
    student = small.student(config)
    methods = make_methods(Setup(config, student, model))
    learner = Learner(config, model, student, methods=methods)
    return learner.learn(0, list(_turns() if turns is None else turns), Phases())


def _constant(values: Sequence[float]) -> list[Tensor]:
    """One advantage a turn, for each of its tokens."""
    return [
        torch.full((len(turn.response_ids),), value, dtype=torch.float64)
        for turn, value in zip(_turns(), values, strict=True)
    ]


def _signs() -> list[float]:
    """+1.5 for the first trajectory of each group, 0 for the second, -0.5 for the others."""
    return [(1.5, 0.0, -0.5, -0.5)[int(turn.tid[-1])] for turn in _turns()]


def test_every_token_is_reweighted_by_teacher_against_behaviour() -> None:
    """A~ = A * (1 + alpha * (clip(exp(sgn(A) * (T - O))) - 1)), token by token, by hand."""
    method = _prepared(_config({"alpha": 0.4, "clip": 0.3}), small.model())
    adv = _signs()
    found = method.shaped(_constant(adv))
    changed = 0
    for m, turn in enumerate(_turns()):
        row = method.scored.get(m)
        for j, old in enumerate(turn.logprobs):
            factor = 1.0
            if row is not None:
                delta = float(row.logprobs[j]) - old
                u = math.exp(delta) if adv[m] > 0 else math.exp(-delta)
                factor = 1 + 0.4 * (min(max(u, 0.7), 1.3) - 1)
            assert float(found[m][j]) == pytest.approx(adv[m] * factor, rel=1e-6), (m, j)
            changed += factor != 1.0 and adv[m] != 0.0
        assert found[m].shape == (len(turn.response_ids),)
    assert changed > 50
    assert method.metrics()["rlsd/alpha"] == 0.4
    assert set(method.metrics()) == {
        f"rlsd/{name}" for name in ("alpha", "row_coverage", "truncated_fraction",
                                    "delta_abs_mean", "clipped_fraction", "u_mean")
    }  # fmt: skip


def test_the_teacher_reads_how_another_attempt_succeeded() -> None:
    method = _prepared(_config(), small.model())
    won = {(t.uid, t.tid) for t in _turns() if t.done and t.success}
    assert 0 < len(won) < len({(t.uid, t.tid) for t in _turns()})
    covered = [m for m, t in enumerate(_turns()) if any(
        uid == t.uid and tid != t.tid for uid, tid in won
    )]  # fmt: skip
    assert sorted(method.scored) == covered
    assert method.metrics()["rlsd/row_coverage"] == pytest.approx(len(covered) / len(_turns()))
    m = covered[0]
    first = next(
        tid for uid, tid in sorted(won) if uid == _turns()[m].uid and tid != _turns()[m].tid
    )
    winner = next(t for t in _turns() if t.tid == first)
    text = small.tokenizer().decode(list(method.scored[m].prompt.ids))
    assert "How another attempt at this task succeeded:" in text
    assert f"Step 1\nResponse: {winner.reply.replace('<think></think>', '')}" in text
    limited = _prepared(_config({"context_steps": 1}), small.model())
    shorter = small.tokenizer().decode(list(limited.scored[m].prompt.ids))
    assert "Step 2\nResponse" not in shorter


@pytest.mark.parametrize("which", ["all", "positive", "negative", "mixed"])
def test_the_filter_chooses_rollouts_by_their_advantage(which: str) -> None:
    method = _prepared(_config({"rollout_filter": which}), small.model())
    first = _turns()[0].uid
    # One group has both signs, the other none below 0.
    adv = [a if t.uid == first else abs(a) for a, t in zip(_signs(), _turns(), strict=True)]
    found = method.shaped(_constant(adv))
    passes = {
        "all": lambda a, t: True,
        "positive": lambda a, t: a > 0,
        "negative": lambda a, t: a < 0,
        "mixed": lambda a, t: t.uid == first,
    }[which]
    assert {t.uid for t in _turns()} != {first}
    touched = 0
    for m, (a, turn) in enumerate(zip(adv, _turns(), strict=True)):
        plain = torch.full((len(turn.response_ids),), a, dtype=torch.float64)
        if passes(a, turn) and m in method.scored and a != 0.0:
            touched += not torch.equal(found[m], plain)
        else:
            assert torch.equal(found[m], plain), m
    assert touched > 0
    assert method.metrics()["rlsd/u_mean"] is not None
    if which == "positive":
        none = _prepared(_config({"rollout_filter": which}), small.model())
        none.shaped(_constant([-1.0] * len(adv)))
        assert none.metrics()["rlsd/u_mean"] is None


def test_rows_that_joined_later_stay_as_they_are() -> None:
    method = _prepared(_config(), small.model())
    joined = torch.tensor([7.0, 8.0], dtype=torch.float64)
    found = method.shaped([*_constant(_signs()), joined])
    assert len(found) == len(_turns()) + 1
    assert found[-1] is joined


@pytest.mark.parametrize("case", ["weight_zero", "alpha_zero", "clip_zero", "no_success"])
def test_with_nothing_to_say_parameters_are_bit_identical_to_the_base(case: str) -> None:
    section = {"weight_zero": {"weight": 0.0}, "alpha_zero": {"alpha": 0.0},
               "clip_zero": {"clip": 0.0}, "no_success": {}}[case]  # fmt: skip
    turns = list(_turns())
    if case == "no_success":
        turns = [replace(t, success=False, format_valid=i % 2 == 0) for i, t in enumerate(turns)]
    start, base, ours = small.model(), small.model(), small.model()
    _learn(_config(auxiliary__rlsd=None), base, turns)
    metrics = _learn(_config(section), ours, turns)
    assert not small.same(small.weights(start), small.weights(base))
    assert small.same(small.weights(base), small.weights(ours))
    measured = case in ("weight_zero", "clip_zero")
    assert (metrics["rlsd/delta_abs_mean"] is not None) == measured


def test_with_a_solution_parameters_differ_also_under_kl() -> None:
    config = _config(objective__kl_coef=0.01)
    base, ours = small.model(), small.model()
    student, reference = small.student(config), small.model(seed=1)
    for model, c in ((base, config.replace(**{"auxiliary.rlsd": None})), (ours, config)):
        methods = make_methods(Setup(c, student, model))
        Learner(c, model, student, reference, methods).learn(0, list(_turns()), Phases())
    assert not small.same(small.weights(base), small.weights(ours))


def test_alpha_decays_and_then_nothing_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small.model()
    method = _made(_config({"decay": 4, "weight": 0.5}), model)
    turns = list(_turns())
    for iteration, alpha in ((1, 0.1875), (3, 0.0625)):
        method.prepare(Rollouts(iteration, turns, segments_from_turns(turns)), model)
        assert method.metrics()["rlsd/alpha"] == alpha
        assert method.scored
    monkeypatch.setattr("trainer.methods.reweighting.base.score_segments", None)
    method.prepare(Rollouts(4, turns, segments_from_turns(turns)), model)
    given = _constant(_signs())
    assert method.shaped(given) is given
    assert method.metrics()["rlsd/row_coverage"] is None


# -------------------------------------------------------------------------- a planner's solution


def test_a_plan_is_shown_to_the_teacher_and_to_nobody_else() -> None:
    config = _config({"context": "plan"})
    model = small.model()
    method = _prepared(config, model, env=True)
    decode = small.tokenizer().decode
    assert set(method.scored) == set(range(len(_turns())))
    for m, turn in enumerate(_turns()):
        plan = small.games().walkthrough(turn.task_id)
        assert plan
        text = decode(list(method.scored[m].prompt.ids))
        shown = text[text.index(PLAN_TITLE) :].splitlines()[1:]
        commands = shown[: shown.index("")]
        assert commands[0].startswith("Step 1: ")
        assert len(commands) == len(plan)
        assert commands[-1] == f"Step {len(plan)}: {plan[-1]}"
        assert PLAN_TITLE not in decode(list(turn.prompt_ids))
        assert method.scored[m].turn is turn


def test_a_plan_is_made_once_a_task_and_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = _config({"context": "plan"}), small.model()
    method = _made(config, model, env=True)
    asked: list[Any] = []
    plan = method._planner.plan

    def counted(view: Any, horizon: Any, budget_s: Any) -> Any:
        asked.append((horizon, budget_s))
        found = plan(view, horizon, budget_s)
        return replace(found, actions=()) if len(asked) == 1 else found

    monkeypatch.setattr(method._planner, "plan", counted)
    turns = list(_turns())
    for iteration in range(2):
        method.prepare(Rollouts(iteration, turns, segments_from_turns(turns)), model)
    assert asked == [(None, 1.0)] * len({turn.task_id for turn in turns})
    without = turns[0].task_id
    assert sorted(method.scored) == [m for m, t in enumerate(turns) if t.task_id != without]


@pytest.mark.parametrize("status", [PlanStatus.TIMEOUT, PlanStatus.UNSOLVABLE])
def test_a_planner_that_ran_out_of_time_is_asked_again_in_the_next_iteration(
    status: PlanStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a resumed run asks, which remembers no answer; any other answer is final."""
    config, model = _config({"context": "plan"}), small.model()
    turns = list(_turns())
    n = len({turn.task_id for turn in turns})
    method = _made(config, model, env=True)
    plan, asked = method._planner.plan, 0

    def slow(view: Any, horizon: Any, budget_s: Any) -> Any:
        nonlocal asked
        asked += 1
        return Plan(status, ()) if asked == 1 else plan(view, horizon, budget_s)

    monkeypatch.setattr(method._planner, "plan", slow)
    without = [m for m, turn in enumerate(turns) if turn.task_id != turns[0].task_id]
    counts = []
    for iteration in range(3):
        method.prepare(Rollouts(iteration, turns, segments_from_turns(turns)), model)
        counts.append(asked)
        if iteration == 0:
            assert sorted(method.scored) == without, "asked once, not for each of its turns"
    resumed = _made(config, model, env=True)
    resumed.prepare(Rollouts(1, turns, segments_from_turns(turns)), model)
    again = status is PlanStatus.TIMEOUT
    assert counts == ([n, n + 1, n + 1] if again else [n] * 3)
    assert (method.scored.keys() == resumed.scored.keys()) == again


def test_a_shop_has_plans_too() -> None:
    config = load_config(
        {},
        {"env.id": WEBSHOP, "env.webshop.generated.products": 64, "auxiliary.rlsd.context": "plan"},
    )
    goals = open_tasks(config.env)
    setup = Setup(
        config, small.student(), small.model(), lambda: make_env(config.env, goals, "train")
    )
    (method,) = make_methods(setup)
    assert isinstance(method, Rlsd)
    turns = [make_turn(task_id=task) for task in goals.task_ids("train")[:4]]
    rows = method.contexts(Rollouts(0, turns, segments_from_turns(turns)))
    told = [section for (section,) in rows]
    assert {title for title, _ in told} == {PLAN_TITLE}
    assert len({text for _, text in told}) == 4
    for _, text in told:
        assert text.startswith("Step 1: search[")
        assert text.endswith("click[buy now]")


def test_a_plan_needs_an_environment() -> None:
    config = _config({"context": "plan"})
    with pytest.raises(ConfigError, match="context=plan needs an environment to plan in"):
        _made(config, small.model())


# -------------------------------------------------------------------------- teacher and config


def test_the_teacher_is_a_copy_or_the_policy_itself() -> None:
    model = small.model()
    synced = _made(_config({"sync_every": 2}), model)
    current = _made(_config({"teacher": "current"}), model)
    assert current.teacher.of(model) is model
    assert current.state() == {}
    start = small.weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for iteration, followed in ((0, False), (1, True)):
        synced.finished_step(model)
        synced.finished_iteration(iteration, model)
        now = small.weights(synced.teacher.of(model))
        assert small.same(now, small.weights(model)) == followed
        assert small.same(now, start) != followed
    other = _made(_config({"sync_every": 2}), small.model())
    other.load_state(synced.state())
    assert small.same(small.weights(other.teacher.of(model)), small.weights(model))
    assert all(
        p.grad is None and not p.requires_grad for p in synced.teacher.of(model).parameters()
    )


def test_turns_from_a_file_give_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_turns(tmp_path / "turns.parquet", list(_turns()))
    left, right = small.model(), small.model()
    config = _config({"rendering": "observation_action"})
    ran = small.untimed(_learn(config, left))
    read = read_turns(tmp_path / "turns.parquet")
    assert ran == small.untimed(_learn(config, right, read))
    assert small.same(small.weights(left), small.weights(right))
    assert ran["rlsd/u_mean"] is not None


def test_a_win_becomes_likelier_and_a_failure_less_likely() -> None:
    config = _config({"alpha": 1.0}, optim__lr=1e-3, optim__steps=1)
    won = {(t.uid, t.tid) for t in _turns() if t.done and t.success}
    lost = {t.uid for t in _turns() if (t.uid, t.tid) not in won}
    rows = [t for t in _turns() if t.uid in lost & {uid for uid, _ in won}]
    signs = torch.tensor([1.0 if (t.uid, t.tid) in won else -1.0 for t in rows])
    model = small.model()

    def logps() -> Tensor:
        values = score_segments(model, segments_from_turns(rows), LIMITS)
        return torch.stack([value.sum() for value in values])

    before = logps()
    _learn(config, model)
    assert float((signs * (logps() - before)).sum()) > 0


def test_settings() -> None:
    s = RlsdConfig()
    assert (s.weight, s.alpha, s.decay, s.clip, s.sync_every) == (1.0, 0.5, 50, 0.2, 10)
    assert (s.context, s.teacher, s.rollout_filter) == ("success", "synced", "all")
    assert s.oracle_budget_s == 1.0
    for key, value, message in (
        ("oracle_budget_s", 0.0, r"rlsd\.oracle_budget_s=0.0"),
        ("clip", 1.0, r"rlsd\.clip=1.0"),
        ("context", "answer", "context"),
        ("rollout_filter", "some", "rollout_filter"),
        ("teacher", "ema", "teacher"),
    ):
        with pytest.raises(ConfigError, match=message):
            _config({key: value})
