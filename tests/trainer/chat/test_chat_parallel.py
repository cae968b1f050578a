"""Over several processes the turns of a conversation stay in one step too."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.trainer import small
from tests.trainer.chat import world
from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.parallel.test_parallel_run import _train
from tests.trainer.short_runs import sampled, trained
from trainer import loop
from trainer.learning.batch import partition_whole
from trainer.parallel.shard import own_parts
from trainer.rng import stream


def test_ranks_cut_the_list_of_all_of_them_as_one_process_does():
    sizes = [[5, 3, 4], [6, 2]]  # trajectories of each rank
    counts = [sum(own) for own in sizes]
    every = [size for own in sizes for size in own]
    parts = partition_whole(every, 3, stream(0, purpose="shuffle"))
    first = 0
    for rank, own in enumerate(sizes):
        mine = own_parts(parts, counts, rank)
        assert sorted(i for part in mine for i in part) == list(range(counts[rank]))
        assert [i + first for i in mine[0]] == [
            i for i in parts[0] if first <= i < first + counts[rank]
        ]
        place = 0
        for size in own:
            assert sum(bool(set(range(place, place + size)) & set(part)) for part in mine) == 1
            place += size
        first += counts[rank]


def test_two_processes_make_the_conversations_and_the_weights_of_one(tmp_path: Path) -> None:
    c = world.config(
        world.policy(tmp_path / "policy"),
        auxiliary__sero={},
        run__iterations=1,
        run__save_turns=True,
        rollout__tasks=3,
        rollout__rollouts=2,
        env__max_steps=4,
        optim__lr=1e-3,
        optim__steps=2,
    )
    loop.train(c, tmp_path / "alone")
    shared = c.replace(**{"parallel.mode": "ddp"})
    run_ranks(_train, tmp_path, shared, [("shared", "ddp", 1)])
    one, two = (sampled(tmp_path / name) for name in ("alone", "shared"))
    assert [row[:5] for row in one] == [row[:5] for row in two]
    start = small.weights(world.model())
    weights, theirs = trained(tmp_path / "alone"), trained(tmp_path / "shared")
    assert max(float((weights[name] - start[name]).abs().max()) for name in start) > 1e-4
    for name in start:
        torch.testing.assert_close(theirs[name], weights[name], rtol=0, atol=1e-5)
