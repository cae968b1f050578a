"""What needs no second process: shares, counts, figures, refusals."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer.config import ConfigError
from trainer.learning.batch import partition
from trainer.methods.registry import METHODS
from trainer.objectives import Denominators
from trainer.objectives.aggregate import AGGREGATIONS, aggregate
from trainer.parallel import methods
from trainer.parallel.context import ALONE, Group
from trainer.parallel.counts import share_of
from trainer.parallel.launch import own_config, own_folder, processes
from trainer.parallel.metrics import merged
from trainer.parallel.shard import own_parts, part_of
from trainer.rng import stream
from trainer.runs.folder import RunFolderError

LIBRARY = [{"name": "plan", "text": "look where such things are kept"}]


@pytest.mark.parametrize("n", [0, 1, 5, 8])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_parts_of_all_ranks_are_the_list(n: int, world: int) -> None:
    parts = [list(part_of(n, rank, world)) for rank in range(world)]
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        part_of(4, 2, 2)


def test_steps_of_all_ranks_are_those_of_one_process() -> None:
    counts = [3, 0, 5]
    parts = partition(8, 3, stream(0, purpose="shuffle"))
    own = [own_parts(parts, counts, rank) for rank in range(3)]
    for index, part in enumerate(parts):
        together = [i + sum(counts[:rank]) for rank in range(3) for i in own[rank][index]]
        assert sorted(together) == sorted(part)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_shares_make_up_the_loss(how: Any) -> None:
    config = small.small_config(objective__aggregation=how).objective
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    values = torch.arange(12, dtype=torch.float64).reshape(4, 3)
    total = Denominators.of(mask, 7)
    whole = aggregate(values, mask, how, total)
    parts = []
    for rows in (slice(0, 1), slice(1, 4)):
        own = Denominators.of(mask[rows], 7)
        parts.append(share_of(own, total, config) * aggregate(values[rows], mask[rows], how, own))
    torch.testing.assert_close(sum(parts), whole)


def test_figures_are_weighted_by_what_they_are_means_of() -> None:
    left = {"turns": 1, "command_valid_share": 1.0, "success_rate": 1.0, "entropy": None,
            "response_tokens": 0, "time/collect": 1.0, "sero/roots": 0, "sero/gate_mean": None,
            "sero/gate_reasons": {}, "lr": 0.1}  # fmt: skip
    right = {"turns": 3, "command_valid_share": 0.0, "success_rate": 0.0, "entropy": 2.0,
             "response_tokens": 9, "time/collect": 4.0, "sero/roots": 2, "sero/gate_mean": 0.5,
             "sero/gate_reasons": {"active": 2}, "lr": 0.1}  # fmt: skip
    found = merged([(left, 1, 1, 1), (right, 1, 1, 1)])
    assert found == {
        "turns": 4, "command_valid_share": 0.25, "success_rate": 0.5, "entropy": 2.0,
        "response_tokens": 9, "time/collect": 4.0, "sero/roots": 2, "sero/gate_mean": 0.5,
        "sero/gate_reasons": {"active": 2}, "lr": 0.1,
    }  # fmt: skip


def test_alone_every_operation_gives_back_what_it_got() -> None:
    assert ALONE.sum([1.5]) == ALONE.max([1.5]) == [1.5]
    assert ALONE.any([True, False]) == [True, False]
    assert ALONE.counts(3) == [3]
    assert ALONE.gather({"a": None}) == [{"a": None}]
    assert ALONE.gather_bytes(b"x") == [b"x"]
    ALONE.wait()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auxiliary__seed": {"gate_center": "mean"}}, "gate_center=mean: the mean gate"),
        ({"auxiliary__seed": {"shuffle": "train"}}, "shuffle=train: whose skill"),
        (
            {"auxiliary__sdar": {"entries": LIBRARY, "retrieval": "ucb"}},
            "retrieval=ucb: what is chosen next",
        ),
        ({"auxiliary__gkd": {"source": "teacher", "fraction": 0.5}}, "source=teacher: which draws"),
    ],
)
def test_what_is_not_shared_is_refused_with_its_reason(settings: dict[str, Any], said: str) -> None:
    small.small_config(**settings)
    with pytest.raises(ConfigError, match=said):
        small.small_config(parallel__mode="ddp", **settings)


def test_moments_in_blocks_are_refused_with_shards_only() -> None:
    small.small_config(parallel__mode="ddp", optim__optimizer="adamw_8bit")
    with pytest.raises(ConfigError, match=r"parallel\.mode=fsdp refuses optim\.optimizer"):
        small.small_config(parallel__mode="fsdp", optim__optimizer="adamw_8bit")


def test_every_method_has_a_form_for_ranks() -> None:
    """Each one is the method itself, with what ranks add to it."""
    assert methods.METHODS.keys() == METHODS.keys()
    for name, place in methods.METHODS.items():
        module, _, attribute = place.partition(":")
        shared = getattr(importlib.import_module(module), attribute)
        module, _, attribute = METHODS[name].partition(":")
        assert issubclass(shared, getattr(importlib.import_module(module), attribute))


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.timeout_s=5 has no effect"):
        small.small_config(parallel__timeout_s=5.0)


def test_without_torchrun_a_run_is_alone() -> None:
    with processes(small.small_config(parallel__mode="ddp"), {}) as group:
        assert group is ALONE


def test_many_processes_without_a_mode_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match="2 processes were started"),
        processes(small.small_config(), {"WORLD_SIZE": "2", "RANK": "0"}),
    ):
        pass


def test_one_gpu_for_all_processes_is_refused() -> None:
    config = small.small_config(parallel__mode="ddp", run__device="cuda:0")
    with (
        pytest.raises(ConfigError, match=r"run\.device=cuda:0.*Set run\.device to cuda"),
        processes(config, {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}),
    ):
        pass


def test_one_rank_logs() -> None:
    config = small.small_config(log__to=["tensorboard"], parallel__mode="ddp")
    assert own_config(config, Group(0, 2)) is config
    assert own_config(config, Group(1, 2)).log.to == ()


def test_what_another_rank_removes_stays_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "wait", lambda self: None)
    run = tmp_path / "run"
    for name in ("run.json", "eval/a.json", "initial/model", "checkpoints/000001/state.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("kept")
    with own_folder(run, Group(0, 2)) as mine:
        assert mine == run
    with own_folder(run, Group(1, 2)) as scratch:
        assert (scratch / "checkpoints/000001/state.json").read_text() == "kept"
        (scratch / "eval/a.json").write_text("changed")
        import shutil

        shutil.rmtree(scratch / "checkpoints/000001")
    assert not scratch.exists()
    assert (run / "checkpoints/000001/state.json").read_text() == "kept"
    assert (run / "eval/a.json").read_text() == "kept"


def test_messages_of_another_rank_name_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "wait", lambda self: None)
    run = tmp_path / "run"
    with (
        pytest.raises(RunFolderError, match="already holds") as caught,
        own_folder(run, Group(1, 2)) as scratch,
    ):
        raise RunFolderError(f"{scratch} already holds a run.")
    assert str(caught.value) == f"{run} already holds a run."
