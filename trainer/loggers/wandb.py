"""Weights & Biases, without a network as well: then the run stays in local files to be synced.

$WANDB_MODE decides where it is set. Else the run is offline where the server does not answer.
A resumed run keeps its identity. Online its history is cut back to the resume point
(`resume_from`); offline a further part is written, and `wandb sync --append` joins them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trainer.loggers.base import Identity, LoggerError, tracker_package

__all__ = ["WandbLogger", "answers"]

SERVER = "https://api.wandb.ai"
_PATIENCE_S = 3.0


class WandbLogger:
    """One run of the client; neither code, console, command line nor host name is sent.

    Raises:
        LoggerError: the package is not installed, or the client does not start.
    """

    name = "wandb"

    def __init__(self, run: Identity) -> None:
        wandb = tracker_package("wandb")
        mode = os.environ.get("WANDB_MODE") or (
            "online" if answers(os.environ.get("WANDB_BASE_URL") or SERVER) else "offline"
        )
        identity: dict[str, Any] = {"id": run.id}
        if run.first and mode == "online":
            identity = {"resume_from": f"{run.id}?_step={run.first}"}
        elif run.first:
            identity |= {"resume": "allow"}
        run.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            host="-",
        )
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.name,
                dir=str(run.folder),
                config=dict(run.config),
                mode=mode,
                settings=settings,
                **identity,
            )
        except Exception as error:  # the client has no one family of errors
            raise LoggerError(
                f"log.to names wandb, and its client does not start: {error} Log in with `wandb "
                "login`, or write local files with WANDB_MODE=offline."
            ) from error

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


def answers(url: str, patience_s: float = _PATIENCE_S) -> bool:
    """Whether the host of `url` takes a connection; nothing is sent."""
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=patience_s):
            return True
    except OSError:
        return False
