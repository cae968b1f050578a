"""Steps of several processes are those of one, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer import small
from tests.trainer.parallel.comparing import MODES, TOLERANCE, compare, start
from tests.trainer.parallel.learning import (
    Case,
    learn_alone,
    learn_cases,
    train_until_one_fails,
    written,
)
from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.short_runs import run_config
from trainer.models.tiny import save_policy
from trainer.rollouts.data import Turn, write_turns

OBJECTIVES = ("reinforce_pp", "reinforce_pp_baseline", "gspo", "dr_grpo", "gigpo")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Case]]:
    """All of this file, in one start of two processes."""
    folder = tmp_path_factory.mktemp("gradients")
    save_policy(folder / "policy", small.model().double(), small.tokenizer())
    save_policy(folder / "reference", small.model(seed=1).double(), small.tokenizer())
    trajectories = small.rollouts(Case("", "ddp", ()).config(), small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    write_turns(folder / "turns.parquet", turns)
    write_turns(folder / "eight.parquet", _eight(turns))
    some = [turn for turn in turns if turn.tid.endswith((".0", ".1"))]
    write_turns(folder / "some.parquet", some)
    cut = next(i for i, turn in enumerate(some) if turn.uid == "0.1")
    n = len(turns)
    first = next(i for i, turn in enumerate(turns) if turn.uid == "0.1")
    assert 0 < first != n - first
    made = [
        case
        for mode in MODES
        for case in (
            Case(f"unequal-{mode}", mode, (0, first, n), steps=5),
            Case(f"silent-{mode}", mode, (0, first, n), silent=True),
            Case(f"none-{mode}", mode, (0, 0, n)),
            Case(
                f"nan-{mode}", mode, (0, 3, 8), turns="eight", broken=True,
                overrides={"objective__kl_coef": 0.1},
            ),
            # One row a pass, so ranks differ in passes; KL, clipping and AdamW as in a run.
            Case(
                f"eight-{mode}", mode, (0, 3, 8), turns="eight",
                overrides={
                    "optim__optimizer": "adamw", "optim__lr": 1e-3, "optim__grad_clip": 1.0,
                    "objective__kl_coef": 0.1, "optim__micro_batch_tokens": 1, "optim__steps": 2,
                },
            ),
        )
    ]  # fmt: skip
    made += [Case(name, "ddp", (0, first, n), {"objective__name": name}) for name in OBJECTIVES]
    made += [
        Case(
            f"{name}-{mode}{'-silent' if silent else ''}", mode, (0, cut, len(some)),
            {
                "objective__name": name, "objective__critic__lr": 0.1,
                "optim__grad_clip": 1.0, "optim__micro_batch_tokens": 900,
            },
            steps=1 if silent else 5 if name == "ppo" and mode == "fsdp" else 2,
            turns="some", silent=silent,
        )
        for mode, name, silent in (
            ("ddp", "ppo", False), ("fsdp", "ppo", False), ("ddp", "ppo_trajectory", False),
            ("fsdp", "turn_gae", False), ("ddp", "ppo", True), ("fsdp", "ppo", True),
        )
    ]  # fmt: skip
    for case in made:
        if not case.silent:
            learn_alone(folder, case)
    run_ranks(learn_cases, folder, made[0].config(), made)
    return folder, {case.name: case for case in made}


def _eight(turns: list[Turn]) -> list[Turn]:
    """Eight turns of two groups, two trajectories each; three of the first."""
    chosen: list[Turn] = []
    for uid, sizes in (("0.0", (1, 2)), ("0.1", (2, 3))):
        tids = list(dict.fromkeys(t.tid for t in turns if t.uid == uid))
        for size in sizes:
            found = [t for tid in tids for t in turns if t.tid == tid]
            own = [t for t in found if t.tid == tids[0]][:size]
            chosen += own
            tids.pop(0)
    return chosen


@pytest.mark.parametrize("mode", MODES)
def test_unequal_shares_give_the_gradient_of_one_process(
    cases: tuple[Path, dict[str, Case]], mode: str
) -> None:
    folder, known = cases
    case = known[f"unequal-{mode}"]
    error, moved, apart = compare(folder, case)
    print(f"{mode}: relative gradient error {error:.1e}, moved {moved:.2g}")
    assert error < TOLERANCE
    assert moved > 1000 * TOLERANCE
    assert apart == 0.0
    figures = [written(folder, case, who)["figures"] for who in ("alone", "0", "1")]
    assert torch.equal(figures[1], figures[2])
    torch.testing.assert_close(figures[1], figures[0], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_without_the_exchange_of_gradients_the_comparison_fails(
    cases: tuple[Path, dict[str, Case]], mode: str
) -> None:
    folder, known = cases
    error, _, _ = compare(folder, known[f"silent-{mode}"], known[f"unequal-{mode}"])
    assert error > 1000 * TOLERANCE


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_without_rows_takes_part(cases: tuple[Path, dict[str, Case]], mode: str) -> None:
    folder, known = cases
    error, moved, apart = compare(folder, known[f"none-{mode}"])
    assert error < TOLERANCE
    assert moved > 1000 * TOLERANCE
    assert apart == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_o33_three_and_five_segments(cases: tuple[Path, dict[str, Case]], mode: str) -> None:
    folder, known = cases
    case = known[f"eight-{mode}"]
    alone, zero, one = (written(folder, case, who) for who in ("alone", "0", "1"))
    # A hang, not a slow machine, would take so long: the work itself is a second.
    assert max(float(zero["seconds"]), float(one["seconds"])) < 60
    began, last = start(), case.steps - 1
    for name in began:
        key = f"{last}/{name}"
        assert torch.equal(zero[key], one[key])
        torch.testing.assert_close(zero[key], alone[key], rtol=0, atol=1e-5)
    assert max(float((alone[f"{last}/{n}"] - began[n]).abs().max()) for n in began) > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_o33_calling_the_model_in_another_way_misses_no_gradient(
    cases: tuple[Path, dict[str, Case]], mode: str
) -> None:
    """There is no wrapper whose `forward` would have to be used: body and head, a packed row or
    the model itself, what is summed are the gradients. Without the sum ranks drift apart, or
    shards, which are one set of weights, go elsewhere."""
    folder, known = cases
    assert compare(folder, known[f"eight-{mode}"])[2] == 0.0
    error, _, apart = compare(folder, known[f"silent-{mode}"], known[f"unequal-{mode}"])
    assert (apart if mode == "ddp" else error) > 1000 * TOLERANCE


@pytest.mark.parametrize(("mode", "how"), [("ddp", "raises"), ("fsdp", "dies")])
def test_o33_a_rank_that_fails_leaves_nobody_waiting(tmp_path: Path, mode: str, how: str) -> None:
    config = run_config(tmp_path, parallel__mode=mode, run__iterations=1)
    with pytest.raises(AssertionError, match=r"^exit codes") as caught:
        run_ranks(train_until_one_fails, tmp_path, config, how)
    told = str(caught.value)
    if how == "raises":
        assert "RankError: Rank 1 of this run failed, and rank 0 cannot go on without it" in told
        assert told.count("rank 1's own failure") > 1
    else:
        assert "RankError: Rank 0 lost another process of this run" in told


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_that_is_not_finite_on_one_rank_is_refused_by_all(
    cases: tuple[Path, dict[str, Case]], mode: str
) -> None:
    folder, known = cases
    case = known[f"nan-{mode}"]
    for who in ("alone", "0", "1"):
        found = written(folder, case, who)
        assert found["counters"].tolist() == [0.0, float(case.steps)]
        for name, value in start().items():
            assert torch.equal(found[f"{case.steps - 1}/{name}"], value)


@pytest.mark.parametrize("name", ["ppo-ddp", "ppo-fsdp", "ppo_trajectory-ddp", "turn_gae-fsdp"])
def test_the_critic_is_that_of_one_process(cases: tuple[Path, dict[str, Case]], name: str) -> None:
    """Whitening and losses over the turns of all ranks, clipped by the norm of the sum."""
    folder, known = cases
    for critic in (False, True):
        error, moved, apart = compare(folder, known[name], critic=critic)
        print(f"{name}, {critic=}: relative gradient error {error:.1e}, moved {moved:.2g}")
        assert error < TOLERANCE
        assert moved > 1000 * TOLERANCE
        assert apart == 0.0
    figures = [written(folder, known[name], who)["figures"] for who in ("alone", "0", "1")]
    assert torch.equal(figures[1], figures[2])
    torch.testing.assert_close(figures[1], figures[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_without_the_exchange_the_critic_is_another(
    cases: tuple[Path, dict[str, Case]], mode: str
) -> None:
    folder, known = cases
    error, _, _ = compare(folder, known[f"ppo-{mode}-silent"], known[f"ppo-{mode}"], critic=True)
    assert error > 1000 * TOLERANCE


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_kind_of_statistic(cases: tuple[Path, dict[str, Case]], name: str) -> None:
    """Of the batch, of groups, of sequences."""
    folder, known = cases
    error, _, apart = compare(folder, known[name])
    assert error < TOLERANCE
    assert apart == 0.0
