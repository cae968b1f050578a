"""SEED's first stage: pairs from recorded turns, and a policy that learns to write them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes import make_turn
from tests.trainer import small
from tests.trainer.methods import toy_analysers
from trainer import rng
from trainer.auxiliary.hindsight_sft import split_pairs
from trainer.config import ConfigError
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits
from trainer.methods.skills.contexts import RepeatedTurn
from trainer.models.text_model import ExternalTextModel
from trainer.models.tiny import load_policy, save_policy
from trainer.rollouts.data import Turn, write_turns
from trainer.supervised import skill_sft as module
from trainer.supervised import warmstart
from trainer.supervised.skill_sft import (
    Collected,
    SftSettings,
    collect_pairs,
    joined,
    pair_segment,
    skill_sft,
)

PLACE = "tests.trainer.methods.toy_analysers"
FAST = SftSettings(epochs=8, lr=1e-2)


def _turns(count: int = 20) -> list[Turn]:
    """Short trajectories, each of its own task; every other one is won."""
    return [
        make_turn(
            uid=f"g{n}", tid=f"g{n}.0", task_id=f"task {n // 2}", goal=f"put thing {n} down",
            done=True, success=n % 2 == 0, observation="a room", reply="look",
        )
        for n in range(count)
    ]  # fmt: skip


def _collected(name: str = "outcome", count: int = 20, **options: Any) -> Collected:
    model = ExternalTextModel(getattr(toy_analysers, name)())
    return collect_pairs(_turns(count), model, **options)


def test_every_answer_of_the_right_form_is_a_pair() -> None:
    found = _collected(count=4)
    assert (len(found.pairs), found.trajectories) == (4, 4)
    assert found.task_ids == ("task 0", "task 0", "task 1", "task 1")
    for n, pair in enumerate(found.pairs):
        assert f"Task: put thing {n} down\n" in pair.prompt[0]["content"]
        outcome = "failure" if n % 2 else "success"
        assert json.loads(pair.response)["episode_skill"] == toy_analysers.skill_of(
            f"put thing {n} down", outcome
        )
    half = _collected("failures_only", count=4)
    assert (len(half.pairs), half.trajectories) == (2, 4)
    assert half.task_ids == ("task 0", "task 1")
    assert len(_collected("second_try", count=4).pairs) == 0
    assert len(_collected("second_try", count=4, calls=2).pairs) == 4
    assert "step_skills" in _collected("steps", count=1, mode="episode_step").pairs[0].response
    assert "step_skills" not in _collected("steps", count=1).pairs[0].response


def test_only_the_answer_is_trained() -> None:
    (pair,) = _collected(count=1).pairs
    student = small.student()
    segment = pair_segment(pair, student)
    tokens = zip(segment.ids, segment.loss_mask, strict=True)
    trained = [i for i, keep in tokens if keep]
    assert trained[-1] == student.end_id
    assert small.tokenizer().decode(trained[:-1]) == pair.response
    rest = small.tokenizer().decode(list(segment.ids[: -len(trained)]))
    assert rest == pair.prompt[0]["content"] + "\n"


def test_the_held_out_loss_falls() -> None:
    model = small.model(std=0.02)
    report = skill_sft(model, small.student(), _collected(), FAST)
    assert (report["train"], report["held_out"]) == (18, 2)
    assert (report["trajectories"], report["wrong_form"], report["too_long"]) == (20, 0, 0)
    assert report["steps"] == 18, "8 epochs of 18 pairs, 8 a step"
    assert report["held_out_nll_before"] > 5.0
    assert report["held_out_nll_after"] < 0.6 * report["held_out_nll_before"]
    assert report["train_nll_after"] < report["train_nll_before"]


def test_the_report_is_the_mean_over_tokens() -> None:
    """With a rate that moves nothing, before and after are the same number, worked out here."""
    model, student, found = small.model(), small.student(), _collected(count=4)
    settings = SftSettings(epochs=1, batch=2, lr=1e-12, train_share=0.5)
    report = skill_sft(model, student, found, settings)
    assert (report["train"], report["held_out"], report["steps"]) == (2, 2, 1)
    stream = rng.stream(0, purpose="skill-sft-split")
    parts = split_pairs(found.pairs, stream, train_share=0.5)
    for name, pairs in zip(("train", "held_out"), parts, strict=True):
        rows = [pair_segment(pair, student) for pair in pairs]
        scores = torch.cat(score_segments(model, rows, PassLimits(10**6, 0))).double()
        for when in ("before", "after"):
            assert report[f"{name}_nll_{when}"] == pytest.approx(-float(scores.mean()), rel=1e-5)
    assert report["train_nll_before"] != pytest.approx(report["held_out_nll_before"], rel=1e-5)


def test_whole_tasks_can_be_held_out() -> None:
    settings = replace(FAST, epochs=1, hold_out_tasks=True, train_share=0.7)
    report = skill_sft(small.model(), small.student(), _collected(count=6), settings)
    parts = report["train"], report["held_out"]
    assert parts == (4, 2), "two of three tasks, two trajectories each"
    settings = replace(settings, hold_out_tasks=False, train_share=0.5)
    report = skill_sft(small.model(), small.student(), _collected(count=6), settings)
    assert report["train"] == 3


def test_too_little_to_train_on_is_refused() -> None:
    model, student = small.model(), small.student()
    with pytest.raises(ConfigError, match=r"0 pairs of 4 trajectories leave 0 to train on and 0"):
        skill_sft(model, student, _collected("useless", count=4), FAST)
    with pytest.raises(ConfigError, match="both need at least one"):
        skill_sft(model, student, _collected(count=4), replace(FAST, max_tokens=10))
    for name in ("epochs", "batch", "lr", "max_tokens"):
        with pytest.raises(ConfigError, match=f"{name}=0 must be positive"):
            skill_sft(model, student, _collected(count=4), replace(FAST, **{name: 0}))
    with pytest.raises(ConfigError, match="lr=nan must be positive"):
        replace(FAST, lr=float("nan")).check()
    with pytest.raises(ConfigError, match="warmup_steps=-1 must be at least 0"):
        replace(FAST, warmup_steps=-1).check()
    for share in (0.0, 1.0, 1.5, float("nan")):
        with pytest.raises(
            ConfigError, match=f"train_share={share} must lie between 0 and 1, both"
        ):
            replace(FAST, train_share=share).check()


def test_defaults_are_the_published_ones() -> None:
    c = SftSettings()
    assert (c.epochs, c.batch, c.lr, c.max_tokens, c.train_share) == (3, 8, 5e-6, 8192, 0.9)
    assert not c.hold_out_tasks


@pytest.mark.parametrize("analyser", [f"{PLACE}:outcome", "policy"])
def test_the_command_trains_a_saved_policy(tmp_path: Path, analyser: str, capsys: Any) -> None:
    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    for place, part in (("a", _turns()[:10]), ("b", _turns()[10:])):
        write_turns(tmp_path / f"{place}.parquet", part)
    argv = [
        "--policy", str(tmp_path / "policy"),
        "--turns", str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"),
        "--out", str(tmp_path / "out"),
        "--analyser", analyser,
        "--max-new-tokens", "8",
        "--sft.epochs", "1",
        "--sft.lr", "0.01",
    ]  # fmt: skip
    if analyser == "policy":  # which cannot write a skill
        with pytest.raises(ConfigError, match="0 pairs of 20 trajectories"):
            module.main(argv)
        return
    module.main(argv)
    report = json.loads((tmp_path / "out/skill_sft.json").read_text())
    assert report["held_out_nll_after"] < report["held_out_nll_before"]
    assert "held_out: 2" in capsys.readouterr().out
    before, after = (load_policy(tmp_path / name)[0] for name in ("policy", "out"))
    assert not small.same(small.weights(before), small.weights(after))


def test_settings_are_looked_at_before_anything_is_analysed(tmp_path: Path) -> None:
    args = module.Args(tmp_path, (tmp_path / "a",), tmp_path, sft=SftSettings(train_share=1.0))
    with pytest.raises(ConfigError, match=r"train_share=1\.0"):
        module.run(args)


def test_equal_ids_in_two_files_are_different_trajectories(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    first = _turns(6)
    second = [replace(t, goal=f"{t.goal} again", success=not t.success) for t in first]
    for place, part in (("a", first), ("b", second)):
        write_turns(tmp_path / f"{place}.parquet", part)
    with pytest.raises(RepeatedTurn):  # as one list they cannot be told apart
        collect_pairs([*first, *second], ExternalTextModel(toy_analysers.outcome()))
    report = module.run(
        module.Args(
            policy=tmp_path / "policy",
            turns=(tmp_path / "a.parquet", tmp_path / "b.parquet"),
            out=tmp_path / "out",
            analyser=f"{PLACE}:outcome",
            sft=replace(FAST, epochs=1, train_share=0.5),
        )
    )
    assert (report["trajectories"], report["train"], report["held_out"]) == (12, 6, 6)


def test_draws_are_keyed_by_the_file_too() -> None:
    class Drawing:
        def __init__(self) -> None:
            self.draws: list[float] = []

        def answers(self, chats: Any, streams: list[np.random.Generator]) -> list[str | None]:
            self.draws += [float(stream.random()) for stream in streams]
            return [None for _ in chats]

    model = Drawing()
    parts = [collect_pairs(_turns(2), model, file=file) for file in (0, 1, 0)]
    assert model.draws[:2] == model.draws[4:]
    assert len(set(model.draws)) == 4
    assert joined(parts) == Collected((), (), 6)
    ab, c = _collected(count=2), _collected("failures_only", count=4)
    assert joined([ab, c]) == Collected(
        (*ab.pairs, *c.pairs), ("task 0", "task 0", "task 0", "task 1"), 6
    )


def test_refused_steps_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmstart, "gradient_norm", lambda parameters: float("nan"))
    report = skill_sft(small.model(), small.student(), _collected(), replace(FAST, epochs=1))
    assert report["nonfinite_steps"] == report["steps"] == 3
    assert report["train_nll_after"] == report["train_nll_before"]
    monkeypatch.undo()
    report = skill_sft(small.model(), small.student(), _collected(), replace(FAST, epochs=1))
    assert report["nonfinite_steps"] == 0
