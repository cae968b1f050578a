"""The other samplers in a conversation: one iteration each, and the replies of `hf`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import full_count
from tests.trainer.chat import templates, world
from tests.trainer.generation.stand_in_vllm import StandIn
from tests.trainer.short_runs import trained
from trainer.learning.update import score_segments
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.models.packing import chains
from trainer.models.tiny import load_policy
from trainer.rollouts.data import Turn, read_turns, segments_from_turns

COLD = 1e-3
"""A temperature at which the likeliest token is drawn, whoever draws."""


@pytest.fixture(params=[templates.CHATML, templates.DROPS_THOUGHTS], ids=["appends", "drops"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return world.policy(tmp_path / "policy", request.param)


@pytest.fixture
def server(policy: Path) -> Iterator[StandIn]:
    with StandIn(load_policy(policy)[0]) as running:
        yield running


def _run(policy: Path, folder: Path, temperature: float, **sampler: Any) -> list[Turn]:
    c = world.config(
        policy,
        auxiliary__sero={"think_mode": "sampled"},
        rollout__temperature=temperature,
        rollout__rollouts=2,
        run__save_turns=True,
        run__iterations=1,
        optim__old_logprobs="recompute" if sampler.get("backend") == "vllm" else "sampler",
        env__max_steps=4,
        eval__tasks=1,
        **{f"sampler__{key}": value for key, value in sampler.items()},
    )
    (line,) = train(c, folder).metrics
    assert line["nonfinite_steps"] == 0
    return read_turns(folder / "turns/000000.parquet")


def _replies(turns: list[Turn]) -> list[tuple[Any, ...]]:
    return [(t.uid, t.tid, t.t, t.prompt_ids, t.response_ids, t.command) for t in turns]


def _far(policy: Path, turns: list[Turn]) -> float:
    """Largest distance between recorded log-probs and those of the trainer's own pass."""
    model, tokenizer = load_policy(policy)
    limits = PassLimits(4096, tokenizer.pad_token_id)
    found = score_segments(model, segments_from_turns(turns), limits)
    assert {t.t for t in turns} == {0, 1, 2, 3}, "later turns too, behind replies in the prompt"
    return max(
        abs(a - b)
        for turn, row in zip(turns, found, strict=True)
        for a, b in zip(turn.logprobs, row.tolist(), strict=True)
    )


@pytest.mark.parametrize("temperature", [1.0, COLD][: full_count(1, 2)])
def test_hf_cb_plays_the_episodes_of_hf(policy: Path, tmp_path: Path, temperature: float) -> None:
    expected = _run(policy, tmp_path / "hf", temperature)
    continuous = {"backend": "hf-cb", "cache_tokens": 4096, "max_batch_tokens": 512}
    found = _run(policy, tmp_path / "cb", temperature, **continuous)
    # Every reply draws from a stream of its own, so the two agree at any temperature.
    assert _replies(found) == _replies(expected)
    if temperature == COLD:  # which magnifies what floating point rounds
        return
    assert _far(policy, found) < 1e-4
    for turn, other in zip(found, expected, strict=True):
        assert turn.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    weights, theirs = trained(tmp_path / "cb"), trained(tmp_path / "hf")
    for name, value in weights.items():
        assert float((value - theirs[name]).abs().max()) < 1e-3


def test_vllm_plays_the_greedy_episodes_of_hf(
    policy: Path, server: StandIn, tmp_path: Path
) -> None:
    expected = _run(policy, tmp_path / "hf", COLD)
    found = _run(policy, tmp_path / "served", COLD, **_served(server, tmp_path))
    assert _replies(found) == _replies(expected)
    asked = {tuple(body["prompt"]) for body in server.asked}
    assert {turn.prompt_ids for turn in found} <= asked, "ids go to the server as they are"


def _served(server: StandIn, tmp_path: Path) -> dict[str, Any]:
    return {"backend": "vllm", "url": server.url, "weights_dir": str(tmp_path / "weights")}


def test_vllm_log_probs_are_the_trainers(policy: Path, server: StandIn, tmp_path: Path) -> None:
    found = _run(policy, tmp_path / "served", 1.0, **_served(server, tmp_path))
    assert _far(policy, found) < 1e-4
    segments = segments_from_turns(found)
    trajectories = len({(turn.uid, turn.tid) for turn in found})
    drops = load_policy(policy)[1].chat_template == templates.DROPS_THOUGHTS
    assert drops or len(chains([segment.ids for segment in segments])) == trajectories
