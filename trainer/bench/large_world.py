"""Episodes of known numbers of turns and tokens, for a policy of any size with random weights.

Every prompt has the same number of words and no episode ends early, so an iteration runs over
known numbers of tokens. What is shown depends on the task and on the last command: as in a real
environment, the rollouts of a group begin alike and part with their first replies.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_envs.core import TextEnv
from agent_envs.draws import Draws
from agent_envs.errors import MissingData, SnapshotMismatch, TaskNotFound

__all__ = ["LongEnv", "word_tokenizer", "write_sizes"]

_NEVER = "<never>"


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """`vocabulary` tokens, one a word. Its end token has the id behind the last one, which a
    policy of that vocabulary cannot say, so every reply is as long as it may be."""
    words = ("<unk>", "<pad>", *(f"w{number}" for number in range(vocabulary - 2)))
    known = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>")
    tokenizer.add_special_tokens({"eos_token": _NEVER})
    return tokenizer


def write_sizes(path: Path, *, tasks: int, words: int, vocabulary: int) -> None:
    """What `LongEnv` reads: its tasks, words of an observation, words to draw from."""
    path.write_text(
        json.dumps({"tasks": tasks, "words": words, "vocabulary": vocabulary}), encoding="utf-8"
    )


class LongEnv(TextEnv):
    """Observations of a fixed number of words; any text is a command, and paid by its text alone.

    Args:
        data: path of a file that `write_sizes` wrote.

    Raises:
        MissingData: no such file is named.
    """

    env_id = "trainer.bench.large_world:LongEnv"

    def __init__(self, data: str | None = None, max_steps: int | None = 50) -> None:
        super().__init__(max_steps=max_steps)
        if data is None:
            raise MissingData(f"{self.env_id} needs env.data: a file of sizes.")
        sizes = json.loads(Path(data).read_text(encoding="utf-8"))
        self._words, self._vocabulary = int(sizes["words"]), int(sizes["vocabulary"])
        self._tasks = tuple(f"long/{number}" for number in range(int(sizes["tasks"])))
        self._place = 0
        self._last = 0

    def _task_ids(self) -> Sequence[str]:
        return self._tasks

    def _load(self, task_id: str) -> None:
        if task_id not in self._tasks:
            raise TaskNotFound.among(task_id, self._tasks, self.env_id)
        self._place = self._tasks.index(task_id)

    def _begin(self) -> str:
        self._last = 0
        return self._show()

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if not command.strip():
            return self._show(), 0.0, None, 0.0, False
        self._last = zlib.crc32(command.encode())
        return self._show(), self._last % 1000 / 1000, None, 0.0, True

    def _show(self) -> str:
        draws = Draws("long", self._place, self._last)
        return " ".join(f"w{draws.below(self._vocabulary - 2)}" for _ in range(self._words))

    def _admissible(self) -> tuple[str, ...]:
        return ("w0",)

    def _engine_state(self) -> tuple[Any, ...]:
        return (self._last,)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if len(state) != 1 or not isinstance(state[0], int):
            raise SnapshotMismatch(f"{state!r} is no state of {task_id}; expected one number.")
        self._load(task_id)
        self._last = state[0]

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "long",
            "split": "train",
            "goal": "w0",
            "action_templates": (),
            "provenance": {"engine": "long", "data_revision": self.data_revision},
        }

    @property
    def data_revision(self) -> str:
        return "long 1"
