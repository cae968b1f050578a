"""What the tests of SERO's switches share."""

from __future__ import annotations

from typing import Any

from tests.trainer import small
from trainer.branches.branching import Brancher, grow
from trainer.branches.records import GrownRoot, RootChoice
from trainer.config import Config
from trainer.rollouts.data import Segment
from trainer.rollouts.rollout import Student, Trajectory
from trainer.rollouts.tokens import decode
from trainer.worlds.tasks import make_env

CHOOSE = "I choose the next command."


def sero_config(**sero: Any) -> Config:
    switches = {f"auxiliary__sero__{key}": value for key, value in sero.items()}
    return small.small_config(
        **{
            "env__max_steps": 12,
            "auxiliary__sero": {},
            "prompt__max_prompt_tokens": 20_000,
            "rollout__max_new_tokens": 200,
            **switches,
        }
    )


def brancher_of(config: Config, student: Student | None = None, sampler: Any = None) -> Brancher:
    section = config.auxiliary.sero
    assert section is not None
    env = make_env(config.env, small.games(), "train")
    return Brancher(config, section, env, student or small.student(config), sampler)


def lookers(config: Config) -> list[Trajectory]:
    """Two groups of rollouts that look around and fail."""
    return small.rollouts(config, small.CommandSampler(lambda request, prompt: "look"))


def grown(config: Config, trajectory: Trajectory, t: int = 0, oracle: Any = None) -> GrownRoot:
    brancher = brancher_of(config)
    return grow(
        RootChoice(0, t),
        trajectory,
        brancher.env,
        oracle or brancher.oracle,
        brancher.student,
        brancher.section,
        config.rollout.max_new_tokens,
    )


def reply_of(row: Segment, tokenizer: Any) -> str:
    """Text of a row's reply: behind the list of possible commands."""
    text = decode(tokenizer, list(row.ids))
    return text[max(text.rfind("\n"), text.rfind("[assistant]") + len("[assistant]") - 1) + 1 :]


def picked(row: Segment, tokenizer: Any) -> str:
    return decode(tokenizer, [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep])
