"""DAPO's dynamic sampling in the loop: which groups are drawn, kept, counted and remembered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_envs.prompting.history import History
from tests.fakes import make_turn
from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import Config
from trainer.iteration import Trainer
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.models.tiny import load_policy
from trainer.rollouts.data import read_turns
from trainer.rollouts.dynamic_sampling import Collected, collect_rounds, informative
from trainer.rollouts.rollout import Episode, Trajectory
from trainer.runs.checkpoint import CheckpointError, load_checkpoint
from trainer.runs.folder import RunFolder
from trainer.worlds.tasks import split_tasks, tasks_from


def dapo(**changes: Any) -> Config:
    return small.small_config(**{"objective__name": "dapo", "rollout__rollouts": 2, **changes})


def group(uid: str, outcomes: Sequence[float], **changes: Any) -> list[Trajectory]:
    """One-turn trajectories that the environment paid so."""
    result = []
    for j, paid in enumerate(outcomes):
        won = paid == 1.0
        turn = make_turn(
            uid=uid, tid=f"{uid}.{j}", done=True, reward=paid, success=won,
            stop_reason="success" if won else "purchase", **changes,
        )  # fmt: skip
        episode = Episode("task", uid, f"{uid}.{j}", 0)
        end = str(turn.stop_reason)
        result.append(Trajectory(episode, "pick", (turn,), (), History(), won, paid, end))
    return result


MIXED, FAILED, SOLVED = (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)


def collected(config: Config, *rounds: Sequence[Sequence[float]]) -> Collected:
    """From rounds of groups, each given by its outcomes."""
    asked: list[int] = []

    def play_round(number: int) -> list[Trajectory]:
        asked.append(number)
        groups = [group(f"{number}{i}", outcomes) for i, outcomes in enumerate(rounds[number])]
        return [trajectory for found in groups for trajectory in found]

    found = collect_rounds(config, play_round)
    assert asked == list(range(len(rounds))), "as many rounds as were needed"
    return found


def kept(found: Collected) -> list[str]:
    return [trajectory.episode.tid for trajectory in found.kept]


def test_one_round_is_enough_if_its_groups_differ() -> None:
    found = collected(dapo(), [MIXED, MIXED])
    assert kept(found) == ["00.0", "00.1", "01.0", "01.1"]
    assert found.groups == 2
    assert found.metrics == {
        "dynamic/rounds": 1, "dynamic/groups_sampled": 2, "dynamic/groups_informative": 2,
        "dynamic/groups_kept": 2, "dynamic/kept_share": 1.0, "dynamic/missing": 0,
        "dynamic/kept_success_rate": 0.5,
    }  # fmt: skip


def test_rounds_go_on_until_enough_groups_differ() -> None:
    found = collected(dapo(), [FAILED, MIXED], [SOLVED, FAILED], [MIXED, MIXED])
    assert kept(found) == ["01.0", "01.1", "20.0", "20.1"], "the first two, the third is left over"
    assert len(found.sampled) == 12
    assert found.groups == 6
    assert found.metrics["dynamic/rounds"] == 3
    assert found.metrics["dynamic/groups_informative"] == 3
    assert found.metrics["dynamic/kept_share"] == pytest.approx(2 / 6)


def test_after_the_last_round_fewer_groups_are_trained_on() -> None:
    config = dapo(objective__dynamic_rounds=2)
    found = collected(config, [FAILED, SOLVED], [MIXED, FAILED])
    assert kept(found) == ["10.0", "10.1"]
    assert found.metrics["dynamic/missing"] == 1
    nothing = collected(config, [FAILED, FAILED], [FAILED, FAILED])
    assert (kept(nothing), nothing.groups) == ([], 4)
    assert nothing.metrics["dynamic/missing"] == 2
    assert nothing.metrics["dynamic/kept_success_rate"] is None


@pytest.mark.parametrize("flavor", ["code", "code_traj"])
def test_public_code_keeps_what_is_left_over_and_the_whole_of_a_last_round(flavor: str) -> None:
    config = dapo(objective__flavor=flavor, objective__dynamic_rounds=2)
    found = collected(config, [FAILED, MIXED], [MIXED, MIXED])
    assert kept(found) == ["01.0", "01.1", "10.0", "10.1", "11.0", "11.1"]
    last = collected(config, [FAILED, FAILED], [FAILED, SOLVED])
    assert kept(last) == ["10.0", "10.1", "11.0", "11.1"]
    assert (last.metrics["dynamic/groups_kept"], last.metrics["dynamic/missing"]) == (2, 2)


def test_without_rounds_everything_is_kept_and_nothing_is_said() -> None:
    found = collected(dapo(objective__dynamic_rounds=0), [FAILED, SOLVED])
    assert list(found.kept) == list(found.sampled)
    assert (len(found.kept), found.groups, found.metrics) == (4, 2, {})


def test_penalties_make_no_group_interesting_and_graded_rewards_do() -> None:
    malformed = group("a", FAILED)
    malformed[0] = replace(
        malformed[0], turns=(replace(malformed[0].turns[0], format_valid=False),)
    )
    long = dapo(objective__overlong_buffer=24)
    graded = group("b", (0.5, 0.0))
    assert informative([*malformed, *graded], long) == {"a": False, "b": False}
    paid = dapo(rollout__reward="env")
    assert informative([*malformed, *graded], paid) == {"a": False, "b": True}


def test_groups_without_a_turn_are_not_interesting() -> None:
    empty = [replace(trajectory, turns=()) for trajectory in group("a", MIXED)]
    assert informative([*empty, *group("b", MIXED)], dapo()) == {"a": False, "b": True}
    assert informative(empty, dapo()) == {"a": False}


# ------------------------------------------------------------------------------ in the loop


class Halfway:
    """Follows the plan now and then, also where replies are greedy: outcomes differ."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.inner = small.half_expert(0.75)

    def generate(self, requests: Any) -> Any:
        from trainer.rng import stream

        return self.inner.generate(
            [replace(r, rng=stream(0)) if r.rng is None else r for r in requests]
        )


def looped(tmp_path: Path, **changes: Any) -> Config:
    return run_config(
        tmp_path,
        **{"objective__name": "dapo", "objective__dynamic_rounds": 4, "rollout__rollouts": 2,
           "run__iterations": 4, "eval__tasks": 1, **changes},
    )  # fmt: skip


def test_o25_resume_continues_the_schedule_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.iteration.make_sampler", Halfway)
    config = looped(tmp_path)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=2)
    train(config, parts, resume=True)
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert sampled(whole) == sampled(parts)
    assert small.same(trained(whole), trained(parts))
    drawn = [line["dynamic/groups_sampled"] for line in straight.metrics]
    assert len(set(drawn)) > 1, "rounds must differ, or the place would follow from the iteration"
    for number in (2, 4):
        state = load_checkpoint(parts / f"checkpoints/{number:06d}").state
        assert state["groups_drawn"] == sum(drawn[:number])
    file = parts / "checkpoints/000002/state.json"
    _without(file, "groups_drawn")
    with pytest.raises(CheckpointError, match=r"state\.json lacks .*groups_drawn"):
        train(config, parts, resume_from=2)


def _without(file: Path, key: str) -> None:
    import hashlib

    state = json.loads(file.read_text())
    del state[key]
    file.write_text(json.dumps(state))
    manifest = file.parent / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listed))


def test_tasks_follow_one_another_and_the_first_round_is_that_of_any_run(tmp_path: Path) -> None:
    config = looped(tmp_path)
    model, tokenizer = load_policy(tmp_path / "policy")

    def trainer(settings: Config, name: str) -> Trainer:
        return Trainer(
            settings, RunFolder(tmp_path / name), model, tokenizer, task_set=small.games(),
            sampler=Halfway(),
        )  # fmt: skip

    rounds, plain = trainer(config, "a"), trainer(
        config.replace(**{"objective.dynamic_rounds": 0}), "b"
    )  # fmt: skip
    tasks, seen = split_tasks(config.env, small.games(), "train"), []
    for iteration in range(3):
        before = rounds.groups_drawn
        found = rounds.collect(iteration)
        uids = list(dict.fromkeys(t.episode.uid for t in found.sampled))
        assert uids == [f"{iteration}.{i}" for i in range(found.groups)]
        assert rounds.groups_drawn == before + found.groups
        by_group = {t.episode.uid: t.episode.task_id for t in found.sampled}
        seen += [by_group[uid] for uid in uids]
        for trajectory in found.sampled:
            streams = (trajectory.episode.task, trajectory.episode.rollout)
            assert trajectory.episode.tid == f"{iteration}.{streams[0]}.{streams[1]}"
    assert len(seen) > 6, "more than a round an iteration"
    assert seen == tasks_from(tasks, 0, len(seen), config.run.seed)
    first = plain.collect(0).sampled
    again = trainer(config, "c").collect(0).sampled
    assert [t.turns for t in again[: len(first)]] == [t.turns for t in first]
    # Without rounds any iteration can be played alone.
    assert [t.episode for t in plain.collect(5).sampled] == [
        t.episode for t in trainer(plain.config, "d").collect(5).sampled
    ]


def test_what_is_logged_is_of_all_and_what_is_trained_on_is_kept(tmp_path: Path) -> None:
    config = looped(tmp_path)
    model, tokenizer = load_policy(tmp_path / "policy")
    trainer = Trainer(
        config, RunFolder(tmp_path), model, tokenizer, task_set=small.games(), sampler=Halfway()
    )
    found = trainer.collect(0)
    trainer.groups_drawn = 0
    metrics = trainer.iterate(0)
    assert 0 < len(found.kept) < len(found.sampled)
    wins = [trajectory.success for trajectory in found.sampled]
    assert metrics["success_rate"] == pytest.approx(sum(wins) / len(wins))
    assert metrics["dynamic/kept_success_rate"] == pytest.approx(
        sum(t.success for t in found.kept) / len(found.kept)
    )
    assert metrics["turns"] == sum(len(t.turns) for t in found.sampled)
    turns = read_turns(tmp_path / "turns/000000.parquet")
    assert [replace(t, snapshot=None) for t in turns] == [
        turn for trajectory in found.kept for turn in trajectory.turns
    ]
    assert metrics["optimizer_steps"] > 0


def test_an_iteration_that_finds_nothing_trains_on_nothing(tmp_path: Path) -> None:
    config = looped(tmp_path, objective__dynamic_rounds=2, env__max_steps=1)
    model, tokenizer = load_policy(tmp_path / "policy")
    trainer = Trainer(config, RunFolder(tmp_path), model, tokenizer, task_set=small.games())
    before = small.weights(model)
    metrics = trainer.iterate(0)
    assert small.same(before, small.weights(model))
    assert (metrics["dynamic/groups_kept"], metrics["dynamic/missing"]) == (0, 2)
    assert (metrics["skipped_now"], metrics["success_rate"]) == (2, 0.0)
    json.dumps(metrics, allow_nan=False)
