"""A plan over several processes, and what it advises: each against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import ROOT
from tests.trainer.planning.test_plan import GB, PUBLISHED, QWEN, N, changed
from trainer.config import Config, load_config
from trainer.planning.advice import remark
from trainer.planning.plan import SHAPES, Device, Plan, PlanError, load_of, make_plan


def config_of(**changes: Any) -> Config:
    return load_config({}, {**PUBLISHED, **{k.replace("__", "."): v for k, v in changes.items()}})


def planned(config: Config, processes: int = 1, gb: float | None = None) -> Plan:
    device = Device("one", None if gb is None else int(gb * GB), 1e15)
    load = load_of(config, prompt=700, reply=100)
    return make_plan(config, QWEN, load, device, processes=processes)


def test_shards_divide_weights_gradients_and_moments() -> None:
    one, four = (planned(config_of(parallel__mode="fsdp"), n) for n in (1, 4))
    for name in ("weights", "gradients", "optimiser"):
        assert four.update[name] == one.update[name] // 4
    assert four.update["weights"] == four.rollout["weights"] == N
    for name in ("reference", "sampler's copy", "activations of a micro-batch"):
        assert four.update[name] == one.update[name], "whole on every rank"
    # One layer and the table of embeddings, with gradients: 8 bytes each.
    layer = 1536 * (2 * 1536 + 2 * 256 + 3 * 8960)
    assert four.update["gathered layer and embeddings"] == 8 * (layer + 151_936 * 1536)
    assert four.flops == one.flops
    assert four.iteration_s == pytest.approx((one.iteration_s or 0) / 4)
    assert four.disk == one.disk, "rank 0 writes whole checkpoints"


def test_float32_samples_with_a_whole_copy() -> None:
    config = config_of(parallel__mode="fsdp", run__dtype="float32", objective__kl_coef=0.0)
    assert planned(config).update["sampler's copy"] == 0
    assert planned(config, 2).update["sampler's copy"] == 4 * N


def test_replicas_divide_the_trajectories_alone() -> None:
    config = config_of(parallel__mode="ddp", sampler__max_batch_tokens=5_120_000)
    one, four = (planned(config, n) for n in (1, 4))
    assert four.update == one.update
    assert four.rollout["KV cache"] == one.rollout["KV cache"] // 4
    assert any("ddp divides trajectories, nothing else" in note for note in four.notes)


def test_a_batch_that_holds_all_trajectories_of_a_process_is_no_small_one() -> None:
    # 128 sequences of 800 tokens, 32 for each of four processes.
    told = {
        rows: [
            note
            for note in planned(
                config_of(parallel__mode="ddp", sampler__max_batch_tokens=rows * 800), 4
            ).notes
            if "at a time" in note
        ]
        for rows in (10, 32)
    }
    assert told[10][0].startswith("10 of 32 trajectories of a process are sampled at a time")
    assert told[32] == []


def test_what_is_no_number_of_processes_is_refused() -> None:
    with pytest.raises(PlanError, match=r"parallel.mode=none"):
        planned(config_of(), 2)
    with pytest.raises(PlanError, match="must be 1 or more"):
        planned(config_of(parallel__mode="fsdp"), 0)


@pytest.mark.parametrize(("processes", "gb"), [(2, 30), (4, 24), (8, 24)])
def test_advice_for_several_processes_is_enough(processes: int, gb: int) -> None:
    config = config_of(parallel__mode="fsdp", run__device="cuda")
    plan = planned(config, processes, gb)
    assert plan.fits is False
    assert not any("adamw_8bit" in option for option in plan.advice), "its moments cannot be cut"
    assert planned(changed(config, plan.advice), processes, gb).fits is True


def test_moments_of_a_byte_come_before_another_optimiser() -> None:
    config = config_of(run__device="cuda", auxiliary__sero__weight=0.1)
    for gb in (30, 32, 34):
        advice = planned(config, gb=gb).advice
        assert "--optim.optimizer adamw_8bit" in advice
        assert planned(changed(config, advice), gb=gb).fits is True
    assert not any("8bit" in option for option in planned(config_of(), gb=32).advice), "no CUDA"


def test_remarks_say_what_else_an_option_does() -> None:
    adafactor = remark("--optim.optimizer adafactor")
    assert adafactor is not None
    assert "relative to the size of the weights" in adafactor
    assert "bitsandbytes" in (remark("--optim.optimizer adamw_8bit") or "")
    assert "norms" in (remark("--auxiliary.measure_gradients false") or "")
    assert remark("--optim.micro_batch_tokens 512") is None


@pytest.mark.parametrize(
    ("row", "name", "size", "changes"),
    [
        ("1.5B", "alfworld_1.5b_gigpo", "qwen2.5-1.5b", {}),
        ("7B", "alfworld_7b_gigpo", "qwen2.5-7b", {}),
        ("7B, 8-bit moments", "alfworld_7b_gigpo", "qwen2.5-7b",
         {"optim.optimizer": "adamw_8bit"}),
    ],
)  # fmt: skip
def test_the_disk_table_of_the_recipes_is_the_plans(
    row: str, name: str, size: str, changes: dict[str, Any]
) -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {row} | "))
    told = [float(cell.split()[0]) * (1000 if "TB" in cell else 1) for cell in line.split("|")[2:5]]
    found = []
    for keep in ("best+last", "all"):
        path = ROOT / f"examples/recipes/{name}.yaml"
        config = load_config(path, {**changes, "run.keep": keep})
        assert load_config(path).run.keep == "best+last"
        plan = make_plan(config, SHAPES[size], load_of(config))
        found += [plan.disk / GB] if found else [plan.checkpoint / GB, plan.disk / GB]
    assert told == pytest.approx(found, rel=0.03)


def test_the_recipe_for_one_large_gpu_fits_it() -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    command = page.partition("On one GPU of 140 GB:")[2].partition("```\n")[2].partition("```")[0]
    words = command.replace("\\\n", " ").split()
    pairs = dict(zip(words[5::2], words[6::2], strict=True))
    changes = {name.removeprefix("--"): value for name, value in pairs.items()}
    config = load_config(ROOT / words[2], changes)
    load = load_of(config, turns=20, prompt=700, reply=150)
    device = Device("one", 140 * GB)
    assert make_plan(config, SHAPES["qwen2.5-7b"], load, device).fits is True
    plain = make_plan(load_config(ROOT / words[2]), SHAPES["qwen2.5-7b"], load, device)
    assert "--auxiliary.measure_gradients false" in plain.advice
