"""What only shards have: a head that is gathered, adapters among frozen weights, and Adafactor."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support import unavailable
from tests.trainer import small
from tests.trainer.parallel.comparing import TOLERANCE, compare
from tests.trainer.parallel.learning import Case, learn_alone, learn_cases
from tests.trainer.parallel.ranks import run_ranks
from trainer.models.tiny import save_policy
from trainer.rollouts.data import write_turns

PEFT = importlib.util.find_spec("peft") is not None
SMALL = {"optim__micro_batch_tokens": 900}
LORA = {**SMALL, "lora__rank": 2, "objective__kl_coef": 0.1, "optim__lr": 1.0}
ADAFACTOR = {**SMALL, "optim__optimizer": "adafactor", "optim__lr": 1e-2}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Case]]:
    """All of this file, in one start of two processes."""
    folder = tmp_path_factory.mktemp("shards")
    save_policy(folder / "policy", small.model().double(), small.tokenizer())
    save_policy(folder / "reference", small.model(seed=1).double(), small.tokenizer())
    trajectories = small.rollouts(Case("", "fsdp", ()).config(), small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    write_turns(folder / "turns.parquet", turns)
    first = next(i for i, turn in enumerate(turns) if turn.uid == "0.1")
    cut = (0, first, len(turns))
    made = [
        Case("pieces", "fsdp", cut, SMALL, exact=False),
        Case("adafactor", "fsdp", cut, ADAFACTOR, steps=3),
    ]
    if PEFT:
        made += [Case(f"lora-{mode}", mode, cut, LORA, steps=3) for mode in ("ddp", "fsdp")]
    for case in made:
        learn_alone(folder, case)
    run_ranks(learn_cases, folder, made[0].config(), made)
    return folder, {case.name: case for case in made}


def test_the_head_is_run_in_pieces(cases: tuple[Path, dict[str, Case]]) -> None:
    """No rank makes logits of more than a few tokens at once; float32, as in a run."""
    folder, known = cases
    error, moved, apart = compare(folder, known["pieces"])
    print(f"relative gradient error {error:.1e}, moved {moved:.2g}")
    assert error < 1e-4
    assert moved > 1e-2
    assert apart == 0.0


def test_adafactor_steps_whole_matrices(cases: tuple[Path, dict[str, Case]]) -> None:
    folder, known = cases
    error, moved, apart = compare(folder, known["adafactor"])
    print(f"relative error of a step {error:.1e}, moved {moved:.2g}")
    assert error < TOLERANCE
    assert moved > 1000 * TOLERANCE
    assert apart == 0.0


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_adapters_learn_as_in_one_process(cases: tuple[Path, dict[str, Case]], mode: str) -> None:
    """With the KL to the policy without them."""
    if not PEFT:
        unavailable("peft", "it is not installed")
    folder, known = cases
    error, moved, apart = compare(folder, known[f"lora-{mode}"])
    print(f"{mode}: relative gradient error {error:.1e}, moved {moved:.2g}")
    assert error < TOLERANCE
    assert moved > 1000 * TOLERANCE
    assert apart == 0.0
