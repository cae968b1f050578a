"""Starts the ranks of a test. They meet through a file: no port is needed."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from trainer.config import Config, from_dict, resolve
from trainer.parallel.launch import joined

TIMEOUT_S = 300.0
"""A hang is an error, not a test that never ends."""

GRACE_S = 60.0
"""Likewise once a rank has failed."""

Work = Callable[..., None]


def run_ranks(work: Work, folder: Path, config: Config, *arguments: Any, world: int = 2) -> None:
    """Calls `work(group, folder, config, *arguments)` on every rank.

    Raises:
        AssertionError: a rank failed, with its traceback, or did not end in time.
    """
    context = multiprocessing.get_context("spawn")
    place = Path(tempfile.mkdtemp(dir=folder, prefix="ranks-"))
    given = (work, place, folder, resolve(config), world, arguments)
    ranks = [context.Process(target=_rank, args=(rank, *given)) for rank in range(world)]
    try:
        for process in ranks:
            process.start()
        _wait(ranks)
        late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        codes = [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
    told = "\n".join(path.read_text() for path in sorted(place.glob("failure-*")))
    assert not late, f"ranks {late} did not end within {TIMEOUT_S:g} s. {told}"
    assert codes == [0] * world, f"exit codes {codes}:\n{told}"


def _wait(ranks: Sequence[Any]) -> None:
    """Until all have ended; less long where one has failed, whom the others may wait for."""
    left, limit = list(ranks), TIMEOUT_S
    while left:
        ended = connection.wait([process.sentinel for process in left], limit)
        if not ended:
            return
        for process in [p for p in left if p.sentinel in ended]:
            process.join()
            left.remove(process)
            if process.exitcode:
                limit = GRACE_S


def _rank(
    rank: int,
    work: Work,
    place: Path,
    folder: Path,
    config: Mapping[str, Any],
    world: int,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    made = from_dict(config)
    try:
        with joined(made, rank, world, f"file://{place / 'meeting'}") as group:
            work(group, folder, made, *arguments)
    except BaseException:
        (place / f"failure-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
        raise
