"""Short runs of every auxiliary objective on GRPO, on households and in a shop.

`make test` runs a few of them, `make test-full` all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import full_count
from tests.trainer import small
from tests.trainer.two_worlds import cloned_policy, short_config
from trainer.loop import train
from trainer.methods.registry import METHODS
from trainer.models.tiny import load_policy
from trainer.worlds.environments import ALFWORLD, WEBSHOP

LIBRARY = [{"name": "plan", "text": "look where such things are kept, then do what was asked"}]
ANALYSER = {"model": f"{__name__}:analyser"}
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "seed": {"analyser": ANALYSER},
    "opid": {"analyser": ANALYSER},
    "sdar": {"entries": LIBRARY, "retrieval": "full"},
    "skill_sd": {"entries": LIBRARY, "retrieval": "full"},
    "opsd": {"context": "plan"},
}
CASES = [(env, name) for name in METHODS for env in (ALFWORLD, WEBSHOP)]
SAMPLE = [(WEBSHOP, "dagger"), (ALFWORLD, "seed"), (WEBSHOP, "serl")]
CHOSEN = CASES[: full_count(0, len(CASES))] or SAMPLE


def analyser() -> Any:
    """A model that gives every episode the same skill."""
    return lambda messages: json.dumps(
        {"summary": "it went on", "episode_skill": "do first what the task names first of all"}
    )


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {env: cloned_policy(env, folder) for env in dict.fromkeys(env for env, _ in CHOSEN)}


@pytest.mark.parametrize(("env", "name"), CHOSEN)
def test_two_iterations(env: str, name: str, policies: dict[str, Path], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model.path": str(policies[env]),
        f"auxiliary.{name}": dict(SECTIONS.get(name, {})),
    }
    if name == "opd":  # a teacher of the same tokenizer
        settings["auxiliary.opd"] = {"teacher": str(policies[env])}
    result = train(short_config(env, **settings), tmp_path / "run")
    assert result.iterations == 2
    for line in result.metrics:
        json.dumps(line, allow_nan=False)
        assert line["nonfinite_steps"] == 0
    assert any(key.startswith(f"{name}/") for key in result.metrics[0]) or name == "format_only"
    if "analyser" in SECTIONS.get(name, {}):
        assert result.metrics[0][f"{name}/skill_valid"] == 1.0
    before = small.weights(load_policy(policies[env])[0])
    after = small.weights(load_policy(tmp_path / "run/checkpoints/000002")[0])
    assert not small.same(before, after)
