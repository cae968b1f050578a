"""From `torchrun`'s environment to a `Group`, and a place for each rank to write.

`torchrun --nproc-per-node 2 -m trainer.cli.main train CONFIG --parallel.mode ddp` starts the
processes; without it a run has one, whatever `parallel.mode` says.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from agent_envs.errors import SeroError
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.parallel.context import ALONE, Group
from trainer.parallel.failures import telling

__all__ = ["joined", "own_config", "own_folder", "processes"]


@contextmanager
def processes(config: Config, environment: Mapping[str, str] | None = None) -> Iterator[Group]:
    """The group of this run, for the length of the block; `ALONE` outside `torchrun`.

    Gloo on a CPU, NCCL on CUDA, where each process takes the device of its local rank.

    Args:
        environment: `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and the place to meet; None: the process's.

    Raises:
        ConfigError: several processes were started, and `parallel.mode` is `none` or `run.device`
            names one GPU for all of them.
    """
    found = os.environ if environment is None else environment
    world = int(found.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE
        return
    if config.parallel.mode == "none":
        raise ConfigError(
            f"{world} processes were started and parallel.mode=none: each would train the same "
            "run alone. Set parallel.mode to ddp or fsdp, or start one process."
        )
    place = torch.device(config.run.device)
    on_cuda = place.type == "cuda"
    if place.index is not None and on_cuda:
        raise ConfigError(
            f"{world} processes were started and run.device={config.run.device}: all of them would "
            "use that one GPU. Set run.device to cuda: each then takes the one of its local rank."
        )
    if on_cuda:
        torch.cuda.set_device(int(found.get("LOCAL_RANK", "0")))
    with joined(
        config,
        int(found["RANK"]),
        world,
        "env://",
        device=f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu",
    ) as group:
        yield group


@contextmanager
def joined(
    config: Config, rank: int, world: int, method: str, *, device: str = "cpu"
) -> Iterator[Group]:
    """The group whose members meet at `method` (torch's init method).

    A rank that waits longer than `parallel.timeout_s` for the others fails. One that fails tells
    the others why before it leaves, so that they can say so where they wait for it.

    Raises:
        RankError: another rank failed, and this one cannot go on without it.
    """
    timeout = timedelta(seconds=config.parallel.timeout_s)
    # Otherwise torch would keep the store to itself.
    store, *_ = next(iter(rendezvous(method, rank, world, timeout=timeout)))
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        store=PrefixStore("processes", store),
        rank=rank,
        world_size=world,
        timeout=timeout,
    )
    try:
        with _every_rank_saves(), telling(PrefixStore("failures", store), rank):
            yield Group(rank, world, device, config.parallel.mode == "fsdp")
    finally:
        dist.destroy_process_group()


@contextmanager
def _every_rank_saves() -> Iterator[None]:
    """Models write themselves on every rank: each of ours has a folder of its own.

    transformers writes on rank 0 alone once there is a process group; older versions do not.
    """
    from transformers import PreTrainedModel

    name = "should_save_on_this_rank"
    kept: Any = getattr(PreTrainedModel, name, None)
    if kept is None:
        yield
        return
    setattr(PreTrainedModel, name, lambda self, is_main_process: is_main_process)
    try:
        yield
    finally:
        if name in vars(PreTrainedModel):
            delattr(PreTrainedModel, name)


def own_config(config: Config, group: Group) -> Config:
    """The config on this rank: figures go to other places than the run folder once."""
    return config if group.writes else config.replace(**{"log.to": ()})


@contextmanager
def own_folder(out: Path, group: Group) -> Iterator[Path]:
    """Where this rank writes: `out` on rank 0, a scratch folder elsewhere, gone with the block.

    A scratch folder shows what `out` has to be resumed from: its run.json, evaluations, initial
    policy and checkpoints. What a rank removes there stays in `out`.
    """
    if group.writes:
        group.wait()  # nothing is written before every rank has seen what there was
        yield out
        return
    scratch = Path(tempfile.mkdtemp(prefix="sero-rank-"))
    try:
        _show(out, scratch)
        group.wait()
        yield scratch
    except SeroError as error:
        # Of the scratch folder nobody knows, and it is gone when the message is read.
        said = (a.replace(str(scratch), str(out)) if isinstance(a, str) else a for a in error.args)
        error.args = tuple(said)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _show(out: Path, scratch: Path) -> None:
    """Small files as copies, large ones as links, in folders of their own."""
    small = [out / "run.json", *sorted((out / "eval").glob("*.json"))]
    large = [p for name in ("initial", "checkpoints") for p in sorted((out / name).rglob("*"))]
    for path in (*small, *large):
        if path.is_file():
            place = scratch / path.relative_to(out)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path in small:
                shutil.copyfile(path, place)
            else:
                place.symlink_to(path.resolve())
