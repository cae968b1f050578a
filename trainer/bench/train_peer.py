"""TRL's GRPO trainer, driven step by step from another process; imports nothing of ours.

Run as a script: `python -P train_peer.py`. It reads one JSON object a line and answers likewise:

    {"do": "open", "folder": ..., "prompts": [...], "settings": {...}, "threads": 1}
                  -> {"opened": {...resolved settings...}, "prompt_ids": [[...], ...]}
    {"do": "step"}  -> {"seconds": ..., "generate_s": ..., "prompt_tokens": ..., ...}
    {"do": "close"} -> {"closed": true}; another "open" may follow
    {"do": "end"}

A step is one generation and the optimiser step that learns from it, from the first micro-batch's
start to the end of the optimiser step: what TRL logs afterwards is not counted. An answer with
"error" says what went wrong; "missing" names a package that is not installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zlib
from tempfile import TemporaryDirectory
from typing import IO, Any


class _Closed(Exception):
    """Leaves a training loop that waits for its next step."""


def serve(lines: IO[str], answers: IO[str]) -> None:
    """Answers requests until there are no more."""

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        for name in ("trl", "datasets", "transformers", "torch"):
            importlib.import_module(name)
        trl: Any = importlib.import_module("trl")
        trl.GRPOTrainer  # noqa: B018  (imported on access)
        say({"ready": {n: importlib.import_module(n).__version__ for n in ("trl", "transformers")}})
    except (ImportError, RuntimeError) as error:
        say({"missing": getattr(error, "name", None) or "trl", "error": str(error)[-300:]})
        return
    for line in lines:
        request = json.loads(line)
        if request["do"] != "open":
            return
        with TemporaryDirectory() as scratch:
            try:
                _train(request, lines, say, scratch)
            except _Closed:
                say({"closed": True})
            except Exception as error:  # a setting that this machine or version does not have
                say({"error": f"{type(error).__name__}: {str(error)[-300:]}"})


def _train(request: dict[str, Any], lines: IO[str], say: Any, scratch: str) -> None:
    import torch

    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(int(request["threads"]))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(request["folder"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        request["folder"], dtype=torch.float32
    )
    trl: Any = importlib.import_module("trl")
    datasets: Any = importlib.import_module("datasets")
    spent = {"generate_s": 0.0, "prompt_tokens": 0, "reply_tokens": 0, "replies": 0}

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]
        """Times what makes the replies, and counts them."""

        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            spent["generate_s"] += time.perf_counter() - start
            spent["prompt_tokens"] += sum(map(len, prompt_ids))
            spent["reply_tokens"] += sum(map(len, result[0]))
            spent["replies"] += len(result[0])
            return result

    class Driver(transformers.TrainerCallback):  # type: ignore[misc]
        """Waits for a line before each step and answers it after."""

        start = (0.0, 0.0)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            asked = json.loads(lines.readline() or '{"do": "close"}')["do"]
            if asked != "step":
                raise _Closed
            spent.update(generate_s=0.0, prompt_tokens=0, reply_tokens=0, replies=0)
            self.start = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds = time.perf_counter() - self.start[0]
            say({"seconds": seconds, "cpu_s": time.process_time() - self.start[1], **spent})

    args = trl.GRPOConfig(output_dir=scratch, **request["settings"])
    trainer = Trainer(
        model=model,
        reward_funcs=_rewards,
        args=args,
        train_dataset=datasets.Dataset.from_dict({"prompt": request["prompts"]}),
        processing_class=tokenizer,
        callbacks=[Driver()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    say(
        {
            "opened": {name: getattr(args, name) for name in request["settings"]},
            "parameters": sum(p.numel() for p in model.parameters()),
            "prompt_ids": tokenizer(text=request["prompts"])["input_ids"],
        }
    )
    trainer.train()


def _rewards(completions: list[str], **_: Any) -> list[float]:
    """A number in [0, 1) that follows from a reply's text."""
    return [zlib.crc32(text.encode()) % 1000 / 1000 for text in completions]


if __name__ == "__main__":
    # What libraries print must not get between the answers.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, replies)
