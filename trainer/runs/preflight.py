"""What can be known to go wrong before the first iteration, said with the numbers and the field.

`check_prompts` wants the policy's tokenizer and a task, so it comes after the config's own checks
and before any work.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from agent_envs.prompting import History
from trainer.config import Config, ConfigError
from trainer.rollouts.rollout import Student

__all__ = ["check_prompts"]


def check_prompts(
    config: Config, student: Student, model: Any, env: gymnasium.Env[str, str], task_id: str
) -> None:
    """Whether a first prompt is within the run's limit, and the limit within the model's.

    A limit that no prompt is within would end every episode at its first turn, without an error and
    without anything to learn from.

    Raises:
        ConfigError: one of the two is not so.
    """
    observation, info = env.reset(options={"task_id": task_id})
    view = History().view(
        info["goal"], observation, info["admissible_actions"], info["action_templates"]
    )
    prompt_ids = student.prompt(view)
    if not student.fits(prompt_ids):
        raise ConfigError(
            f"prompt.max_prompt_tokens={student.max_prompt_tokens} does not hold the first prompt "
            f"of {task_id}: {len(prompt_ids)} tokens with prompt.template="
            f"{config.prompt.template}. Raise it; later prompts are longer."
        )
    places = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    wanted = student.max_prompt_tokens + config.rollout.max_new_tokens
    if places is not None and wanted > places:
        raise ConfigError(
            f"prompt.max_prompt_tokens={student.max_prompt_tokens} and rollout.max_new_tokens="
            f"{config.rollout.max_new_tokens} make {wanted} tokens, and the model has places for "
            f"{places} (max_position_embeddings). Lower either."
        )
