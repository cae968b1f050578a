"""GKD: which steps are on the policy's samples, and what the others are made of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.methods.distilling import (
    LIMITS,
    config_of,
    learned,
    method_of,
    prepared,
    teacher_folder,
    trajectories_of,
    turns_of,
)
from trainer.auxiliary.divergence import divergence
from trainer.methods.distillation import gkd
from trainer.methods.protocol import Rollouts, Step
from trainer.models.policy import collate, token_distributions
from trainer.rollouts.data import segments_from_turns
from trainer.rollouts.rollout import Trajectory


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return trajectories_of(config_of())


def _gkd(steps: int = 1, epochs: int = 1, **section: Any) -> Any:
    """Alone, or beside a base where the teacher is the policy at the start."""
    base = "none" if "teacher" in section else "grpo"
    return config_of(
        objective__name=base, optim__steps=steps, optim__epochs=epochs, auxiliary__gkd=section
    )


def _prepared(
    config: Any, trajectories: list[Trajectory], model: Any = None, iteration: int = 0
) -> Any:
    model = small.model() if model is None else model
    method = method_of(config, model, played=True)
    turns = turns_of(trajectories)
    method.prepare(Rollouts(iteration, turns, segments_from_turns(turns), trajectories), model)
    return method


def _steps(config: Any, iterations: int) -> list[Step]:
    o = config.optim
    return [
        Step(iteration, epoch, index, o.steps, ())
        for iteration in range(iterations)
        for epoch in range(o.epochs)
        for index in range(o.steps)
    ]


@pytest.mark.parametrize(
    ("fraction", "steps", "epochs", "own"),
    [
        (0.5, 1, 1, "01010101"),
        (0.25, 2, 1, "0001000100010001"),
        (0.75, 1, 2, "0111011101110111"),
        (0.5, 2, 2, "01" * 16),
        (0.0, 1, 1, "00000000"),
        (1.0, 1, 1, "11111111"),
    ],
)
def test_a_fraction_of_the_steps_is_on_policy(
    fraction: float, steps: int, epochs: int, own: str
) -> None:
    data = {"source": "success"} if fraction < 1 else {}
    config = _gkd(steps, epochs, fraction=fraction, **data)
    method = method_of(config, small.model())
    found = "".join(str(int(method.on_student(step))) for step in _steps(config, 8))
    assert found == own


def test_an_iteration_that_is_on_policy_asks_nobody(trajectories: list[Trajectory]) -> None:
    assert _prepared(_gkd(), trajectories, iteration=1).metrics()["gkd/data_rows"] == 0
    method = _prepared(_gkd(), trajectories, iteration=0)
    assert method.metrics()["gkd/data_rows"] > 0
    assert method.metrics()["gkd/student_share"] == 0.0
    assert method_of(_gkd(fraction=1.0), small.model(), played=True).desk is None


def test_the_oracles_rows_are_prompts_and_commands_of_won_episodes(
    trajectories: list[Trajectory],
) -> None:
    method = _prepared(_gkd(), trajectories)
    firsts = [t.turns[0].prompt_ids for t in (trajectories[0], trajectories[3])]
    rows = [pair.student for pair in method.data]
    starts = [row.ids[: len(firsts[0])] == firsts[0] for row in rows]
    assert starts[0]
    assert any(row.ids[: len(firsts[1])] == firsts[1] for row in rows)
    plans = [
        small.games().walkthrough(t.episode.task_id) for t in (trajectories[0], trajectories[3])
    ]
    assert len(rows) == sum(len(plan or ()) for plan in plans)
    for row, command in zip(rows, [c for plan in plans for c in plan or ()], strict=True):
        kept = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert small.tokenizer().decode(kept).endswith("</action><end>")
        assert command.split()[0] in small.tokenizer().decode(kept)
    assert all(pair.student == pair.teacher for pair in method.data)


def test_won_rollouts_are_data_without_an_environment(trajectories: list[Trajectory]) -> None:
    turns = turns_of(trajectories)
    method = prepared(_gkd(source="success"), small.model(), turns)
    segments = segments_from_turns(turns)
    won = [s for s, t in zip(segments, turns, strict=True) if t.tid in ("0.0.0", "0.0.1", "0.1.1")]
    assert len(won) == 14
    assert [pair.student for pair in method.data] == won


@pytest.mark.parametrize(("share", "episodes"), [(1.0, 2), (0.0, 0)])
def test_the_teacher_plays_for_itself_and_only_wins_count(
    trajectories: list[Trajectory], monkeypatch: pytest.MonkeyPatch, share: float, episodes: int
) -> None:
    asked: list[Any] = []

    def sampler(model: Any, stop_ids: Any, *, pad_id: int) -> Any:
        asked.append((model, tuple(stop_ids), pad_id))
        return small.half_expert(share)

    monkeypatch.setattr(gkd, "HFSampler", sampler)
    method = _prepared(_gkd(source="teacher"), trajectories)
    student = small.student()
    assert asked == [(method.teacher.of(None), student.stop_ids, student.pad_id)]
    rows = [pair.student for pair in method.data]
    firsts = [t.turns[0].prompt_ids for t in (trajectories[0], trajectories[3])]
    starts = [row for row in rows if row.ids[: len(firsts[0])] == firsts[0]
              or row.ids[: len(firsts[1])] == firsts[1]]  # fmt: skip
    assert len(starts) == episodes
    # One environment a task, kept for later iterations.
    method.prepare(Rollouts(2, turns_of(trajectories), method_segments(trajectories), trajectories),
                   small.model())  # fmt: skip
    assert len(method._envs) == 2
    assert len(asked) == 2


def method_segments(trajectories: list[Trajectory]) -> Any:
    return segments_from_turns(turns_of(trajectories))


def test_the_teacher_draws_from_its_own_streams(
    trajectories: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def choose(request: Any, prompt: str) -> str:
        seen.append(float(request.rng.random()))
        return "look"

    monkeypatch.setattr(gkd, "HFSampler", lambda *_, **__: small.CommandSampler(choose))
    _prepared(_gkd(source="teacher"), trajectories)
    first = list(seen)
    seen.clear()
    _prepared(_gkd(source="teacher"), trajectories)
    assert seen == first
    seen.clear()
    small.rollouts(config_of(rollout__rollouts=2), small.CommandSampler(choose), iteration=0)
    assert not set(seen) & set(first)


def test_the_data_of_an_iteration_is_shared_out_among_its_steps(
    trajectories: list[Trajectory],
) -> None:
    config = _gkd(steps=3, fraction=0.0, source="success")
    method = prepared(config, small.model(), turns_of(trajectories))
    parts = [method.step_pairs(step) for step in _steps(config, 1)]
    assert [len(part) for part in parts] == [5, 5, 4]
    together = sorted(pair.student.ids for part in parts for pair in part)
    assert together == sorted(pair.student.ids for pair in method.data)
    later = [method.step_pairs(step) for step in _steps(config, 2)[3:]]
    assert [p.student.ids for p in later[0]] != [p.student.ids for p in parts[0]]


def test_a_step_on_the_policys_samples_takes_its_own_turns(
    trajectories: list[Trajectory],
) -> None:
    method = prepared(_gkd(fraction=1.0), small.model(), turns_of(trajectories))
    segments = method_segments(trajectories)
    found = method.step_pairs(Step(0, 0, 0, 1, (3, 5)))
    assert [pair.student for pair in found] == [segments[3], segments[5]]


@pytest.mark.parametrize(("beta", "top_k"), [(0.5, None), (0.1, None), (0.9, 5)])
def test_the_loss_is_the_mean_divergence(
    trajectories: list[Trajectory], tmp_path: Any, beta: float, top_k: int | None
) -> None:
    turns = turns_of(trajectories)[:5]
    config = _gkd(fraction=1.0, beta=beta, top_k=top_k, teacher=teacher_folder(tmp_path))
    model = small.model()
    method = prepared(config, model, turns)
    batch = collate(segments_from_turns(turns))
    s, t = (token_distributions(m, batch).detach() for m in (model, small.model(1)))
    expected = divergence(s, t, kind="gjs", beta=beta, top_k=top_k).mean()
    loss = method.backward(model, Step(0, 0, 0, 1, tuple(range(5))), LIMITS)
    assert loss == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_the_policy_goes_to_the_teacher(
    trajectories: list[Trajectory], tmp_path: Any, fraction: float
) -> None:
    turns = turns_of(trajectories)[:8]
    data = {"source": "success"} if fraction < 1 else {}
    config = _gkd(fraction=fraction, teacher=teacher_folder(tmp_path), **data)
    losses = [line["loss/gkd"] for line in learned(config, small.model(), turns, iterations=6)]
    assert losses[-1] < 0.8 * losses[0]
