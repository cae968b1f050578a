"""The training benchmark's arithmetic, its world, its peer and its proportions. No time is
asserted."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agent_envs.errors import DataError, MissingExtra, TaskNotFound
from agent_envs.testing import check_snapshot_env
from tests.support import ROOT
from trainer.bench import train, train_sero_cost
from trainer.bench.train_trl import CANDIDATES, TrlPeer, trl_settings
from trainer.bench.train_world import OneTurnEnv

PEER = os.environ.get("SERO_TRL_PYTHON")
"""An interpreter that has TRL; without it what needs one is skipped."""

needs_trl = pytest.mark.skipif(PEER is None, reason="SERO_TRL_PYTHON names no interpreter with TRL")


def quiet(line: str) -> None:
    """No progress is shown."""


@pytest.fixture(scope="module")
def sero() -> dict[str, Any]:
    return train_sero_cost.measure(train_sero_cost.QUICK, quiet)


def step(seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "seconds": seconds, "cpu_s": 0.5 * seconds, "rollout_s": 0.25 * seconds,
        "other_s": 0.5 * seconds, "prompt_tokens": 90, "reply_tokens": 10, **more,
    }  # fmt: skip


def base(trl: bool = True) -> dict[str, Any]:
    ours = [step(s, update_s=0.25 * s, learnt_tokens=10, run_tokens=40) for s in (1.0, 2.0, 9.0)]
    return {
        "ours": ours, "trl": [step(s) for s in (6.0, 5.0, 7.0)] if trl else [], "mfu": None,
        "versions": {"trl": "1"}, "missing": None if trl else "no TRL", "tried": {},
        "setting": "x", "config": {}, "parameters": 5,
    }  # fmt: skip


def sero_figures(share: float) -> dict[str, Any]:
    return {"share": share, "share_spread": [share, share], "phases": {}}


def test_figures_by_hand() -> None:
    chat = [{"ratio": r} for r in (2.0, 4.0, 3.0)]
    found = train.figures(train.QUICK, base(), chat, sero_figures(0.1))
    assert found["tokens_per_s"] == 50.0  # 100 tokens in the median of 1, 2 and 9 seconds
    assert found["trl"]["tokens_per_s"] == pytest.approx(100 / 6)
    assert found["ratio_trl"] == found["tokens_per_s"] / found["trl"]["tokens_per_s"] == 3.0
    assert found["ratio_trl_cpu"] == 3.0
    assert found["ratio_trl_spread"] == [pytest.approx(7 / 9), 6.0]
    assert found["ratio_chat"] == 3.0
    assert found["ratio_chat_spread"] == [2.0, 4.0]
    assert found["sero_share"] == 0.1
    assert found["mfu"] is None
    assert found["ours"]["rollout_tokens_per_s"] == 10 / 0.5
    assert found["ours"]["run_tokens"] == 40
    json.dumps(found, allow_nan=False)


def test_without_the_peer_there_is_no_ratio_and_nothing_is_missed_for_it() -> None:
    found = train.figures(train.QUICK, base(trl=False), [{"ratio": 4.0}], sero_figures(0.1))
    assert found["ratio_trl"] is found["trl"] is found["phases"]["trl"] is None
    assert found["trl_missing"] == "no TRL"
    assert train.missed(found) == []


def test_every_threshold_can_be_missed() -> None:
    good = {"ratio_trl": 2.0, "ratio_chat": 3.0, "sero_share": 0.149}
    assert train.missed(good) == []
    for name, bad in (("ratio_trl", 1.99), ("ratio_chat", 2.99), ("sero_share", 0.15)):
        (reason,) = train.missed({**good, name: bad})
        assert reason.startswith(name)


def test_unequal_work_is_refused() -> None:
    ours = step(1.0, learnt_tokens=10)
    train.same_counts(ours, step(1.0))
    with pytest.raises(DataError, match="reply_tokens: ours 10, TRL 11"):
        train.same_counts(ours, step(1.0, reply_tokens=11))
    with pytest.raises(DataError, match="learnt from 9 of 10 reply tokens"):
        train.same_counts({**ours, "learnt_tokens": 9}, step(1.0))


@pytest.mark.parametrize(("limit", "expected"), [(4096, 1), (400, 1), (399, 2), (100, 4), (1, 4)])
def test_micro_batches_are_the_fewest_that_fit(limit: int, expected: int) -> None:
    plan = replace(train.QUICK, micro_batch_tokens=limit)  # 4 rows of 96 + 4 tokens
    assert train.micro_batches_of(plan, 96) == expected


def test_settings_take_one_optimiser_step_a_generation() -> None:
    sizes: dict[str, Any] = {
        "prompts": 4, "rollouts": 8, "new_tokens": 64, "lr": 1e-3, "weight_decay": 0.0,
        "grad_clip": 1.0, "steps": 3,
    }  # fmt: skip
    found = trl_settings(micro_batches=4, **sizes)
    assert found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] == 32
    assert found["steps_per_generation"] == found["gradient_accumulation_steps"]
    with pytest.raises(ValueError, match="32 replies cannot be cut into 3"):
        trl_settings(micro_batches=3, **sizes)


def test_the_committed_configuration_is_the_one_that_is_run() -> None:
    kept = json.loads((ROOT / "benchmarks" / "trl_config.json").read_text(encoding="utf-8"))
    plan, given = train.Plan(), kept["GRPOConfig"]
    rest = {k: v for k, v in CANDIDATES[kept["setting"]].items() if k != "micro_batches"}
    expected = rest | trl_settings(
        prompts=plan.prompts,
        rollouts=plan.rollouts,
        new_tokens=plan.new_tokens,
        micro_batches=given["gradient_accumulation_steps"],
        lr=train.LR,
        weight_decay=train.WEIGHT_DECAY,
        grad_clip=train.GRAD_CLIP,
        steps=given["max_steps"],
    )
    assert {**given, "report_to": "none"} == expected  # TRL reads "none" as an empty list


def test_the_world_shows_first_turns_and_pays_by_text(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    rows = [{"goal": f"g{i}", "observation": f"o{i}", "admissible": ["look"]} for i in range(3)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    env = OneTurnEnv(data=str(path))
    shown, info = env.reset(options={"task_id": "first/1"})
    assert (shown, info["goal"], info["admissible_actions"]) == ("o1", "g1", ("look",))
    rewards = []
    for command in ("a", "b", "a"):
        env.reset(options={"task_id": "first/1"})
        _, reward, _, truncated, _ = env.step(command)
        rewards.append(reward)
        assert truncated
    assert rewards[0] == rewards[2] != rewards[1]
    with pytest.raises(TaskNotFound):
        env.reset(options={"task_id": "first/3"})
    # Any text is an answer here, so there is none that the world refuses.
    check_snapshot_env(OneTurnEnv(data=str(path), max_steps=5), skip={"invalid_is_noop"})


def test_our_side_runs_the_counts_it_says() -> None:
    plan = replace(train.QUICK, repeats=1)
    with TemporaryDirectory() as folder:
        found = train._measure_base(plan, Path(folder), quiet, "/nowhere/python")
    (ours,) = found["ours"]  # the first one only warms up
    assert ours["reply_tokens"] == plan.prompts * plan.rollouts * plan.new_tokens
    assert ours["learnt_tokens"] == ours["reply_tokens"]
    # The prompts of a group are run once for all of its replies.
    once = ours["prompt_tokens"] // plan.rollouts + ours["reply_tokens"]
    assert 0 < ours["run_tokens"] <= once < ours["prompt_tokens"] + ours["reply_tokens"]
    assert ours["rollout_s"] + ours["update_s"] + ours["other_s"] == pytest.approx(ours["seconds"])
    assert found["trl"] == []
    assert "/nowhere/python" in found["missing"]


def test_a_python_without_trl_says_which_package_and_extra(tmp_path: Path) -> None:
    (tmp_path / "trl.py").write_text("import nowhere_package\n", encoding="utf-8")
    hidden = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{hidden}"
    try:
        with pytest.raises(MissingExtra, match=r"'nowhere_package' \(extra 'peer'"):
            TrlPeer(sys.executable)
    finally:
        os.environ["PYTHONPATH"] = hidden


@needs_trl
def test_both_sides_run_over_the_same_tokens() -> None:
    plan = replace(train.QUICK, repeats=1)
    with TemporaryDirectory() as folder:
        found = train._measure_base(plan, Path(folder), quiet, PEER)
    for name in ("prompt_tokens", "reply_tokens"):
        assert found["ours"][0][name] == found["trl"][0][name] > 0
    assert set(found["tried"]) == set(CANDIDATES)
    timed = {n: t["seconds"] for n, t in found["tried"].items() if "seconds" in t}
    assert timed[found["setting"]] == min(timed.values())


def test_sero_has_its_proportions(sero: dict[str, Any]) -> None:
    sizes = train_sero_cost.QUICK
    assert sero["trajectories"] == sizes.groups * sizes.rollouts
    assert sero["turns"] == sero["trajectories"] * sizes.turns
    assert sero["roots"] == sizes.groups
    assert sero["branch_steps"] == sizes.depth
    assert sero["rows_trained"] == sizes.groups * sizes.depth


def test_the_parts_of_an_iteration_with_sero_sum_to_it(sero: dict[str, Any]) -> None:
    parts = sero["phases"]
    assert sum(parts.values()) == pytest.approx(sero["iteration_s"])
    own = sum(parts[name] for name in train_sero_cost.PARTS)
    assert sero["share"] == pytest.approx(own / sero["iteration_s"])
    assert sero["share_spread"][0] <= sero["share"] <= sero["share_spread"][1]
    assert all(seconds > 0 for name, seconds in parts.items() if name != "other")
    # The base learns from every turn: without that its update would cost nothing.
    assert sero["learnt_tokens"] > 0.9 * sero["reply_tokens"]
    assert 0 < sero["run_tokens"] < sero["played_tokens"]


def test_too_few_games_are_named() -> None:
    sizes = replace(train_sero_cost.QUICK, games=8, depth=99)
    with pytest.raises(DataError, match="0 of 8 games have plans of 99 steps"):
        train_sero_cost.measure(sizes, quiet)
