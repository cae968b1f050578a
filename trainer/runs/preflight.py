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
from trainer.rollouts.tokens import decode

__all__ = ["check_places", "check_prompts", "places_of"]

_THOUGHT = "<think>"


def check_prompts(
    config: Config, student: Student, model: Any, env: gymnasium.Env[str, str], task_id: str
) -> None:
    """Whether a first prompt is within the run's limit, and the limit within the model's.

    A limit that no prompt is within would end every episode at its first turn, without an error and
    without anything to learn from. Where the prompt opens the thought itself, no reply would have
    the form that is asked for.

    Raises:
        ConfigError: one of these is not so.
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
    asked = student.template.format_command("look").text
    text = decode(student.tokenizer, prompt_ids).rstrip()
    if asked.startswith(_THOUGHT) and text.endswith(_THOUGHT):
        raise ConfigError(
            f"The tokenizer's chat template ends every prompt with {_THOUGHT}, and a reply in the "
            f"form of prompt.template={config.prompt.template} begins with it: every reply would "
            f"count as malformed. Take {_THOUGHT} out of what the chat template adds for "
            "add_generation_prompt, or use another prompt.template."
        )
    check_places(model, student.max_prompt_tokens, config.rollout.max_new_tokens)


def check_places(model: Any, prompt_tokens: int, reply_tokens: int) -> None:
    """Whether the model has places for the longest prompt and the longest reply behind it.

    Raises:
        ConfigError: it has not.
    """
    places, wanted = places_of(model), prompt_tokens + reply_tokens
    if places is None or wanted <= places:
        return
    why = "the model has places for {} (max_position_embeddings)"
    if places == _places_of_short_rows(getattr(model, "config", None)):
        why = (
            "beyond {} the model turns every position of a batch in another way (rope type "
            "longrope), so log-probs would depend on the longest row beside them"
        )
    raise ConfigError(
        f"prompt.max_prompt_tokens={prompt_tokens} and rollout.max_new_tokens={reply_tokens} make "
        f"{wanted} tokens, and {why.format(places)}. Lower either (sero eval: "
        "--max-prompt-tokens, --max-new-tokens)."
    )


def places_of(model: Any) -> int | None:
    """Tokens of the longest row that a model is right for; None: it does not say.

    Beyond `original_max_position_embeddings` longrope changes the rotary frequencies of a whole
    batch at once (transformers, `modeling_rope_utils`).
    """
    shape = getattr(model, "config", None)
    found = getattr(shape, "max_position_embeddings", None), _places_of_short_rows(shape)
    return min((places for places in found if isinstance(places, int)), default=None)


def _places_of_short_rows(shape: Any) -> int | None:
    given = getattr(shape, "rope_parameters", None) or {}
    kinds = [given, *(kind for kind in given.values() if isinstance(kind, dict))]
    found = [
        kind.get("original_max_position_embeddings")
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min((places for places in found if places is not None), default=None)
