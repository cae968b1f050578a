"""The process in which TRL trains, and the settings that it is given.

TRL runs in an interpreter that may be another one than ours, so that neither side's packages
matter to the other. See `trainer.bench.train_peer` for what is said between them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_envs.errors import MissingExtra, WorkerError

__all__ = ["CANDIDATES", "PeerRefusal", "TrlPeer", "trl_settings"]

CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "generate, dynamic cache": {"micro_batches": 1},
    "generate, static cache": {"micro_batches": 1, "cache_implementation": "static"},
    "continuous batching": {
        "micro_batches": 1,
        "use_transformers_continuous_batching": True,
        # By default its cache takes most of the memory, and most of a step's time to allocate.
        "transformers_continuous_batching_config": {"num_blocks": 64, "max_batch_tokens": 8192},
    },
    "generate, dynamic cache, our micro-batches": {},
}
"""What is tried, by name: differences to `trl_settings`. The fastest is compared with.

vLLM and torch.compile are not among them: the first has no backend for this in a plain CPU
installation, the second is switched off in TRL's own generation config.
"""

_HINT = (
    "The figures beside TRL need the package {name!r} (extra 'peer': trl, accelerate, datasets). "
    "Install it, or name an interpreter that has it with --peer."
)


class PeerRefusal(WorkerError):
    """TRL cannot run with some settings here; says why."""


def trl_settings(
    *,
    prompts: int,
    rollouts: int,
    new_tokens: int,
    micro_batches: int,
    lr: float,
    weight_decay: float,
    grad_clip: float,
    steps: int,
) -> dict[str, Any]:
    """Arguments of `trl.GRPOConfig` for one optimiser step on each generation's replies.

    What TRL does by default and we do not is switched off: bfloat16 (slow on a CPU), gradient
    checkpointing (a third more time), writing and reporting. Beta 0: no reference model.
    """
    rows = prompts * rollouts
    if rows % micro_batches:
        raise ValueError(f"{rows} replies cannot be cut into {micro_batches} equal micro-batches.")
    return {
        "per_device_train_batch_size": rows // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches,
        "num_generations": rollouts,
        "max_completion_length": new_tokens,
        "num_iterations": 1,
        "beta": 0.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "shuffle_dataset": False,
        "learning_rate": lr,
        "lr_scheduler_type": "constant",
        "weight_decay": weight_decay,
        "max_grad_norm": grad_clip,
        "optim": "adamw_torch",
        "max_steps": steps,
        "bf16": False,
        "fp16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }


class TrlPeer:
    """A process in which TRL trains.

    Args:
        python: its interpreter; None: this one.

    Attributes:
        versions: of trl and transformers there.

    Raises:
        MissingExtra: TRL or one of its packages is not installed there.
    """

    def __init__(self, python: str | None = None) -> None:
        script = Path(__file__).with_name("train_peer.py")
        try:
            # -P: modules beside the script must not hide packages of the same name.
            self._process = subprocess.Popen(
                [python or sys.executable, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise MissingExtra(f"--peer {python} cannot be run: {error}.") from error
        try:
            found = self._answer()
            if "missing" in found:
                raise MissingExtra(_HINT.format(name=found["missing"]))
        except BaseException:
            self.end()
            raise
        self.versions: dict[str, str] = found["ready"]

    def open(
        self, folder: Path, prompts: Sequence[str], settings: Mapping[str, Any], threads: int
    ) -> dict[str, Any]:
        """Loads the policy of a folder and gets ready to train it.

        Raises:
            PeerRefusal: TRL does not take these settings here.
        """
        self._say("open", folder=str(folder), prompts=list(prompts), settings=dict(settings),
                  threads=threads)  # fmt: skip
        return self._answer()

    def step(self) -> dict[str, Any]:
        """One iteration: its seconds, those of generating, and its counts of tokens.

        Raises:
            PeerRefusal: it fails.
        """
        self._say("step")
        return self._answer()

    def close(self) -> None:
        """Lets the policy go; another may be opened."""
        self._say("close")
        self._answer()

    def end(self) -> None:
        """Ends the process; twice is no error."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _say(self, do: str, **more: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        found: dict[str, Any] = json.loads(line)
        if "error" in found and "missing" not in found:
            raise PeerRefusal(f"TRL: {found['error']}")
        return found

    def _gone(self) -> WorkerError:
        return WorkerError(f"The process of TRL ended with code {self._process.wait()}.")
