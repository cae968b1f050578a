"""The iteration of a large run, with a small policy: the same code as on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_envs.testing import check_snapshot_env
from trainer.bench.large import LargeRun, estimate, measure
from trainer.bench.large_world import LongEnv, write_sizes
from trainer.planning.accounting import ModelShape
from trainer.planning.plan import GB, Device

SMALL = LargeRun(
    groups=2,
    rollouts=2,
    turns=3,
    prompt=40,
    reply=5,
    shape=ModelShape(2, 32, 2, 1, 16, 48, 300, tied=True, bias=True),
    micro_batch_tokens=200,
    dtype="float32",
)


def test_an_iteration_runs_over_the_tokens_that_were_asked_for() -> None:
    found = measure(SMALL, lambda text: None, device="cpu")
    turns = 2 * 2 * 3
    assert found["measured"] is True
    assert found["turns"] == turns
    assert found["prompt_tokens"] == turns * 40
    assert found["reply_tokens"] == turns * 5
    # No more than all of them, and no less than what rollouts cannot share: all but first turns.
    assert turns * 45 - (2 * 40) <= found["learnt_tokens"] <= turns * 45
    assert set(found["seconds"]) >= {"collect", "update"}
    assert 0 < sum(found["seconds"].values()) <= found["iteration_s"]
    assert found["update_mfu"] is None  # nobody knows a CPU's peak
    assert found["peak_memory_gb"] is None


def test_an_estimate_is_said_to_be_one_and_knows_what_does_not_fit() -> None:
    found = estimate(LargeRun(), Device("NVIDIA H100", 80 * GB, 989e12))
    assert found["measured"] is False
    assert "nothing was run" in found["why"]
    assert found["fits"] is True
    # 6 x 1.54e9 parameters x 5.12e6 tokens, attention and head (at the replies alone) apart.
    assert 6 * 1.31e9 * 5.12e6 < found["flops"]["update"] < 6 * 1.6e9 * 5.12e6
    assert found["seconds"]["update"] == pytest.approx(
        found["flops"]["update"] * 4 / 3 / (0.45 * 989e12)
    )
    without = replace(LargeRun(), gradient_checkpointing=False)
    small = estimate(without, Device("small", 24 * GB, 989e12))
    assert small["fits"] is False
    assert small["advice"]


def test_the_tasks_are_an_environment_that_keeps_its_promises(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    write_sizes(sizes, tasks=3, words=7, vocabulary=50)

    def make() -> LongEnv:
        return LongEnv(data=str(sizes), max_steps=4)

    # Raises where a promise is broken; no text is misunderstood here, so nothing is refused.
    check_snapshot_env(make(), make=make, skip=("invalid_is_noop",))


def test_rollouts_part_with_their_first_commands(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    write_sizes(sizes, tasks=1, words=7, vocabulary=50)
    seen = []
    for command in ("a", "b"):
        env = LongEnv(data=str(sizes))
        first, _ = env.reset(options={"task_id": "long/0"})
        then, _, _, _, _ = env.step(command)
        assert len(first.split()) == len(then.split()) == 7
        seen.append((first, then))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]
