"""`sero bench train`, tiny and without TRL: its figures and how they hang together."""

from __future__ import annotations

import pytest

from tests.trainer.cli.conftest import Sero
from trainer.bench import train


def test_quick_without_the_peer(sero: Sero, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = sero("bench", "train", "--quick", "--peer", "/nowhere/python", "--json")
    found = outcome.figures
    assert outcome.code == 0  # nothing of --quick is a threshold missed
    assert found["ratio_trl"] is None
    assert "/nowhere/python" in found["trl_missing"]
    assert {"ratio_chat", "sero_share", "tokens_per_s", "mfu", "phases", "machine"} <= set(found)
    assert found["mfu"] is None
    ours = found["ours"]
    tokens = ours["prompt_tokens"] + ours["reply_tokens"]
    assert found["tokens_per_s"] == ours["tokens_per_s"] == tokens / ours["seconds"]
    assert len(ours["seconds_each"]) == train.QUICK.repeats
    low, high = found["ratio_chat_spread"]
    assert low <= found["ratio_chat"] <= high
    assert any("SERO: " in line for line in outcome.lines)
    assert any("/nowhere/python" in line for line in outcome.lines[:-1])


def test_a_missed_threshold_is_exit_code_1(sero: Sero, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "ratio_trl": None, "ratio_chat": 1.0, "sero_share": 0.01, "trl": None, "parameters": 1,
        "trl_missing": "no TRL", "ratio_chat_spread": [1.0, 1.0], "sero_share_spread": [0.0, 1.0],
        "plan": {"prompts": 1, "rollouts": 1, "new_tokens": 1},
        "ours": dict.fromkeys(
            ("tokens_per_s", "rollout_tokens_per_s", "seconds", "rollout_s", "cpu_s"), 1.0
        ),
        "sero": {
            "trajectories": 1, "turns": 1, "roots": 1, "rows_trained": 1, "parameters": 1,
            "phases": {},
        },
    }  # fmt: skip
    monkeypatch.setattr(train, "measure", lambda *_: dict(figures))
    outcome = sero("bench", "train", "--json")
    assert outcome.code == 1
    assert outcome.figures["missed"] == ["ratio_chat is 1.00, at least 3 was wanted"]
    assert sero("bench", "train", "--quick").code == 0
