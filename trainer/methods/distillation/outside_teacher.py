"""A teacher that is another model: loaded once, never changed, of the same tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from trainer.config import ConfigError
from trainer.methods.protocol import Setup
from trainer.methods.teacher import Teacher
from trainer.models.tiny import load_policy
from trainer.runs.folder import dtype_of

__all__ = ["OutsideTeacher", "check_vocabulary", "teacher_of"]


class OutsideTeacher:
    """As `trainer.methods.teacher.Teacher`, of a model folder; a checkpoint need not hold it.

    Raises:
        ModelFolderError: the folder holds no model.
        ConfigError: its tokenizer is another one.
    """

    def __init__(self, setup: Setup, path: str, field: str) -> None:
        model, tokenizer = load_policy(path, dtype=dtype_of(setup.config))
        check_vocabulary(setup.student.tokenizer, tokenizer, f"{field}={path!r}")
        device = next(setup.model.parameters()).device
        self._model: nn.Module = model.to(device).requires_grad_(False)

    def of(self, trained: nn.Module) -> nn.Module:
        """The model to score with."""
        return self._model

    def finished_step(self, trained: nn.Module) -> None:
        """Nothing: it does not follow the policy."""

    def finished_iteration(self, iteration: int, trained: nn.Module) -> None:
        """Nothing likewise."""

    def state(self) -> dict[str, Tensor]:
        """Nothing: it is read from its folder again."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises ValueError if there is anything: it is another teacher's."""
        if tensors:
            raise ValueError("it holds the parameters of another teacher")


def teacher_of(setup: Setup, path: str | None, field: str) -> Teacher | OutsideTeacher:
    """The model in a folder, or the policy as it was at the start of training where it is None."""
    return Teacher(setup.model, "initial") if path is None else OutsideTeacher(setup, path, field)


def check_vocabulary(student: Any, teacher: Any, what: str) -> None:
    """Raises ConfigError unless both tokenizers give every token the same id."""
    mine, other = student.get_vocab(), teacher.get_vocab()
    if mine == other:
        return
    differs = sorted(token for token in {*mine, *other} if mine.get(token) != other.get(token))
    token = differs[0]
    raise ConfigError(
        f"{what} has another tokenizer than the policy: {len(differs)} tokens differ, e.g. "
        f"{token!r} is {_place(mine, token)} in the policy's ({len(mine)} tokens) and "
        f"{_place(other, token)} in the teacher's ({len(other)} tokens). Distillation compares "
        "token by token: use a teacher of the same model family."
    )


def _place(vocabulary: Mapping[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"
