"""How many tokens an iteration has."""

from __future__ import annotations

from dataclasses import dataclass

from agent_envs.errors import SeroError
from trainer.config import Config
from trainer.planning.accounting import Work

__all__ = ["Load", "PlanError", "in_chat", "load_of"]


class PlanError(SeroError, ValueError):
    """A plan that cannot be made; says what is missing."""


@dataclass(frozen=True, slots=True)
class Load:
    """The tokens of one iteration.

    Attributes:
        trajectories, turns: the latter of each trajectory.
        prompt, reply: tokens of one turn; in `chat` context the prompt is what a turn adds.
        rows, length: sequences that passes run over, and tokens of each: one a turn, in `chat`
            context one a trajectory. What they have in common at their beginning is counted for
            each; a run shares it where it can, and takes less.
    """

    trajectories: int
    turns: int
    prompt: int
    reply: int
    rows: int
    length: int

    @property
    def trained(self) -> int:
        """Trained tokens: those of the replies."""
        return min(self.trajectories * self.turns * self.reply, self.rows * self.length)

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def work(self) -> Work:
        """One pass over everything."""
        one = self.length * (self.length + 1) // 2
        return Work(self.tokens, self.rows * one, self.trained)


def load_of(
    config: Config,
    *,
    turns: int | None = None,
    prompt: int | None = None,
    reply: int | None = None,
) -> Load:
    """The tokens of an iteration; what is not given is as much as the config allows.

    Raises:
        PlanError: a number is not positive, or is more than the config allows.
    """
    limits = {
        "turns": (turns, config.env.max_steps, "env.max_steps"),
        "prompt-tokens": (prompt, config.prompt.max_prompt_tokens, "prompt.max_prompt_tokens"),
        "reply-tokens": (reply, config.rollout.max_new_tokens, "rollout.max_new_tokens"),
    }
    for name, (value, most, key) in limits.items():
        if value is not None and not 0 < value <= most:
            raise PlanError(f"--{name} {value} must lie in 1 to {key}={most}.")
    count = config.rollout.tasks * config.rollout.rollouts
    turns, reply = turns or config.env.max_steps, reply or config.rollout.max_new_tokens
    most = config.prompt.max_prompt_tokens
    if not in_chat(config):
        return Load(count, turns, prompt or most, reply, count * turns, (prompt or most) + reply)
    # A conversation ends when its next prompt would be too long.
    longest = most + reply
    length = longest if prompt is None else min(turns * (prompt + reply), longest)
    added = max(1, length // turns - reply) if prompt is None else prompt
    return Load(count, turns, added, reply, count, length)


def in_chat(config: Config) -> bool:
    """Whether a trajectory is one growing sequence."""
    return str(config.prompt.context) == "chat"
