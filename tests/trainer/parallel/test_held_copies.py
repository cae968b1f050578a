"""What a rank of a sharded run holds beside its shards: one whole copy, the one that samples."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.short_runs import run_config
from trainer.config import Config
from trainer.models.tiny import load_policy
from trainer.parallel.context import Group
from trainer.parallel.iteration import ParallelTrainer
from trainer.runs.folder import RunFolder


def _holds_one_copy(group: Group, folder: Path, config: Config) -> None:
    model, tokenizer = load_policy(folder / "policy")
    run = RunFolder(folder / f"rank-{group.rank}")
    run.path.mkdir()
    trainer = ParallelTrainer(config, run, model, tokenizer, group=group)
    acting = {parameter.data_ptr() for parameter in trainer.acting.parameters()}
    kept = [parameter for m in trainer.methods for parameter in m.setup.model.parameters()]
    assert kept, "methods keep their setup"
    assert all(parameter.data_ptr() in acting for parameter in kept)
    trainer.close()


def test_with_an_auxiliary_objective_no_second_whole_copy_is_held(tmp_path: Path) -> None:
    config = run_config(
        tmp_path, parallel__mode="fsdp", run__dtype="bfloat16", optim__old_logprobs="recompute",
        auxiliary__sero={},
    )  # fmt: skip
    run_ranks(_holds_one_copy, tmp_path, config)
