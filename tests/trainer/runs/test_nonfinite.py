"""A run whose replies cannot be drawn ends as one whose gradients are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.short_runs import run_config
from trainer.cli.main import main
from trainer.generation.base import NonFiniteLogitsError
from trainer.iteration import Trainer
from trainer.loop import NonFiniteError, train
from trainer.models.tiny import save_policy
from trainer.runs.checkpoint import checkpoint_numbers, last_finite
from trainer.runs.folder import RunFolder
from trainer.runs.status import read_status


def _status(folder: Path) -> dict[str, Any]:
    found = read_status(RunFolder(folder))
    assert found is not None
    return found


def _config(tmp_path: Path, **overrides: Any) -> Any:
    return run_config(
        tmp_path,
        **{"run__iterations": 4, "run__checkpoint_every": 1, "eval__splits": []} | overrides,
    )


def _blow_up(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Iteration `after` leaves weights that are finite, and logits that overflow."""
    real = Trainer.iterate

    def iterate(self: Trainer, iteration: int) -> dict[str, Any]:
        metrics = real(self, iteration)
        if iteration == after:
            with torch.no_grad():
                body: Any = self.learner.model.model
                body.norm.weight.fill_(1e36)
                body.embed_tokens.weight.mul_(1e5)
        return metrics

    monkeypatch.setattr(Trainer, "iterate", iterate)


def test_finite_weights_without_finite_logits_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _blow_up(monkeypatch, 1)
    with pytest.raises(NonFiniteError, match=r"Iteration 2 of .*request \d+, with a") as caught:
        train(_config(tmp_path), tmp_path / "run")
    assert isinstance(caught.value.__cause__, NonFiniteLogitsError)
    assert _status(tmp_path / "run")["stop"] == "nonfinite"
    assert _status(tmp_path / "run")["iterations"] == 2
    # The checkpoint after iteration 1 has these weights, so it is the one before that is good.
    assert checkpoint_numbers(tmp_path / "run/checkpoints") == [2, 1]
    assert "good checkpoint is " + str(tmp_path / "run/checkpoints/000001") in str(caught.value)
    assert last_finite(tmp_path / "run/checkpoints", 1) is None
    with pytest.raises(NonFiniteError, match="Iteration 2"):
        train(_config(tmp_path), tmp_path / "run", resume=True)


def test_a_huge_learning_rate_ends_with_a_status(tmp_path: Path) -> None:
    config = _config(tmp_path, optim__lr=1e30, optim__warmup_steps=0, objective__entropy_coef=0.01)
    with pytest.raises(NonFiniteError, match=r"no checkpoint before|last good checkpoint"):
        train(config, tmp_path / "run")
    assert _status(tmp_path / "run")["stop"] == "nonfinite"


@pytest.mark.parametrize("initial", [False, True])
def test_a_model_that_begins_without_numbers_is_told_of(tmp_path: Path, initial: bool) -> None:
    model = small.model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    save_policy(tmp_path / "policy", model, small.tokenizer())
    splits = ["valid_seen"] if initial else []
    config = _config(tmp_path, eval__initial=initial, eval__splits=splits)
    with pytest.raises(NonFiniteError, match=r"Iteration 0 of .*with another model\.path"):
        train(config, tmp_path / "run")
    assert _status(tmp_path / "run")["stop"] == "nonfinite"


def test_sero_eval_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _blow_up(monkeypatch, 0)
    train(_config(tmp_path, run__iterations=1), tmp_path / "run")
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--split", "valid_seen"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "logits are not finite at request 0" in line
