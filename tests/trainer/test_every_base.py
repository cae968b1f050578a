"""Short runs of every base objective, on households and in a shop.

`make test` runs a few of them, `make test-full` all.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import full_count
from tests.trainer import small
from tests.trainer.two_worlds import cloned_policy, short_config
from trainer.config.objective import CRITIC, ObjectiveConfig
from trainer.learning.base_advantages import base_advantages
from trainer.loop import train
from trainer.models.tiny import load_policy
from trainer.rollouts.data import read_turns, segments_from_turns
from trainer.runs.folder import RunFolder
from trainer.worlds.environments import ALFWORLD, WEBSHOP

NAMES = (
    "grpo", "dr_grpo", "dapo", "gspo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gigpo",
    "hgpo", "graphgpo", "ppo", "ppo_trajectory", "turn_gae",
)  # fmt: skip
CASES = [(env, name) for name in NAMES for env in (ALFWORLD, WEBSHOP)]
# A different part of the objectives in each environment; together all but a few.
SAMPLE = [
    (ALFWORLD, "dapo"), (WEBSHOP, "gspo"), (ALFWORLD, "graphgpo"), (WEBSHOP, "turn_gae"),
]  # fmt: skip
CHOSEN = CASES[: full_count(0, len(CASES))] or SAMPLE


def test_every_objective_of_the_config_is_here() -> None:
    from typing import get_args, get_type_hints

    names = get_args(get_type_hints(ObjectiveConfig)["name"])
    assert set(names) == {"none", *NAMES}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {env: cloned_policy(env, folder) for env in dict.fromkeys(env for env, _ in CHOSEN)}


@pytest.mark.parametrize(("env", "name"), CHOSEN)
def test_two_iterations(env: str, name: str, policies: dict[str, Path], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model.path": str(policies[env]),
        "objective.name": name,
        "run.save_turns": True,
    }
    if name == "dapo":
        settings["objective.dynamic_rounds"] = 3
    if name in CRITIC:
        settings["objective.critic.lr"] = 1e-3
    config = short_config(env, **settings)
    assert config.objective.has_critic == (name in ("ppo", "ppo_trajectory", "turn_gae"))
    result = train(config, tmp_path / "run")
    assert result.iterations == 2
    for line in result.metrics:
        json.dumps(line, allow_nan=False)
        assert line["nonfinite_steps"] == 0
        assert ("dynamic/rounds" in line) == (name == "dapo")
        assert ("critic/clip_fraction" in line) == config.objective.has_critic
    taken = result.metrics[-1]["optimizer_steps"]
    before = small.weights(load_policy(policies[env])[0])
    after = small.weights(load_policy(tmp_path / "run/checkpoints/000002")[0])
    assert small.same(before, after) == (taken == 0)
    assert taken > 0, "nothing was learnt: the policy of this test is too bad, or too good"
    if config.objective.has_critic:
        assert (tmp_path / "run/checkpoints/000002/critic.safetensors").exists()
        assert result.metrics[0]["loss/value"] > 0
        return
    # What was saved gives advantages again, finite and not all 0.
    turns = read_turns(RunFolder(tmp_path / "run").turns(0))
    found = base_advantages(
        turns, segments_from_turns(turns), config.objective, config.rollout
    ).tokens
    mean = sum(float(row.abs().mean()) for row in found) / len(found)
    assert math.isfinite(mean)
    assert mean == pytest.approx(result.metrics[0]["advantage_abs_mean"], rel=1e-9)
    assert torch.isfinite(torch.cat(found)).all()
