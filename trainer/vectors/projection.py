"""From a reply to the executed command."""

from __future__ import annotations

from collections.abc import Mapping

from agent_envs.prompting.parsing import project
from trainer.vectors.params import BaseMethod, Json, Params


def _projection(params: Params, scenario: Mapping[str, Json] | None) -> Json:
    action, valid = project(params.need("text"), params.need("tail"))
    return {"action": action, "valid": int(valid)}


METHODS: dict[str, BaseMethod] = {"projection": _projection}
