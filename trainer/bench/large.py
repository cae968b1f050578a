"""One iteration of a large run on this machine's GPU: does it fit, and how well is the GPU used?

By default Qwen2.5-1.5B's architecture with random weights, 128 trajectories of 50 turns with 700
prompt and 100 reply tokens each, GRPO. Rollouts, advantages and update are those of
`trainer.iteration.Trainer`; only words and weights mean nothing. Where there is no CUDA device
nothing is run and the figures are the plan's (`trainer.planning`), said to be estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent_envs.prompting import History, get_template
from trainer.bench.large_world import word_tokenizer, write_sizes
from trainer.config import Config, load_config
from trainer.iteration import Trainer
from trainer.metrics import phase_seconds
from trainer.models.tiny import load_policy, save_policy
from trainer.planning.accounting import ModelShape
from trainer.planning.plan import GB, SHAPES, Device, load_of, make_plan
from trainer.runs.folder import RunFolder

__all__ = ["AT_LEAST_MFU", "LargeRun", "estimate", "measure"]

AT_LEAST_MFU = 0.35
"""Model FLOP utilisation of the update below which the benchmark fails."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LargeRun:
    """Sizes of the iteration.

    Attributes:
        groups, rollouts: trajectories are groups x rollouts.
        turns: of each trajectory.
        prompt, reply: tokens of each turn.
        shape: of the policy.
        micro_batch_tokens, gradient_checkpointing, dtype: as in a run's config.
        iterations: that count; one before them does not.
        seed: of weights and draws.
    """

    groups: int = 16
    rollouts: int = 8
    turns: int = 50
    prompt: int = 700
    reply: int = 100
    shape: ModelShape = SHAPES["qwen2.5-1.5b"]
    micro_batch_tokens: int = 32_768
    gradient_checkpointing: bool = True
    dtype: str = "bfloat16"
    iterations: int = 1
    seed: int = 0


def estimate(sizes: LargeRun, device: Device) -> dict[str, Any]:
    """What the plan says of the iteration on `device`: bytes, FLOPs, seconds. Nothing is run."""
    config = _config(sizes, Path("policy"), Path("sizes.json"), "cuda")
    plan = make_plan(config, sizes.shape, load_of(config, prompt=sizes.prompt), device)
    return {
        "measured": False,
        "why": "no CUDA device: these are the plan's estimates, nothing was run",
        "device": device.name,
        "memory_gb": {
            phase: round(sum(parts.values()) / GB, 2)
            for phase, parts in (("update", plan.update), ("rollout", plan.rollout))
        },
        "fits": plan.fits,
        "flops": dict(plan.flops),
        "seconds": dict(plan.seconds),
        "assumed_utilisation": asdict(plan.utilisation),
        "advice": list(plan.advice),
        "notes": list(plan.notes),
        "sizes": asdict(sizes),
    }


def measure(sizes: LargeRun, progress: Progress, *, device: str = "cuda") -> dict[str, Any]:
    """Runs the iteration and returns its phase table, peak memory and utilisation.

    `update_mfu` is the update's model FLOPs over what the device could have done in the update's
    seconds; None where the device's peak is not known.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        progress("a policy with random weights")
        config = _lay_out(sizes, folder, device)
        trainer = _trainer(config, folder)
        rows = []
        with closing(trainer):
            for number in range(sizes.iterations + 1):
                progress(f"iteration {number}/{sizes.iterations}")
                rows.append(_iterate(trainer, number, device))
    last = rows[-1]
    return {
        "measured": True,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        **last,
        "iterations_s": [row["iteration_s"] for row in rows[1:]],
        "sizes": asdict(sizes),
    }


def _config(sizes: LargeRun, policy: Path, data: Path, device: str) -> Config:
    trajectories = sizes.groups * sizes.rollouts
    return load_config(
        {},
        {
            "run.seed": sizes.seed,
            "run.device": device,
            "run.dtype": sizes.dtype,
            "env.id": "trainer.bench.large_world:LongEnv",
            "env.data": str(data),
            "env.max_steps": sizes.turns,
            "prompt.history_length": 0,
            "prompt.max_prompt_tokens": sizes.prompt,
            "model.path": str(policy),
            "rollout.tasks": sizes.groups,
            "rollout.rollouts": sizes.rollouts,
            "rollout.max_new_tokens": sizes.reply,
            "rollout.reward": "env",
            # All trajectories at a time: fewer would leave a GPU idle.
            "sampler.max_batch_tokens": trajectories * (sizes.prompt + sizes.reply),
            "optim.lr": 1e-6,
            "optim.steps": 10,
            "optim.old_logprobs": "recompute",
            "optim.micro_batch_tokens": sizes.micro_batch_tokens,
            "optim.gradient_checkpointing": sizes.gradient_checkpointing,
            "eval.splits": ["train"],
        },
    )


def _lay_out(sizes: LargeRun, folder: Path, device: str) -> Config:
    """Writes the policy, its tokenizer and the sizes of the tasks."""
    s = sizes.shape
    tokenizer = word_tokenizer(s.vocab)
    config = Qwen2Config(
        vocab_size=s.vocab,
        hidden_size=s.hidden,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        intermediate_size=s.intermediate,
        max_position_embeddings=sizes.prompt + sizes.reply,
        tie_word_embeddings=s.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sizes.seed)
        model = Qwen2ForCausalLM(config)
    save_policy(folder / "policy", model, tokenizer)
    write_sizes(
        folder / "sizes.json",
        tasks=sizes.groups,
        words=sizes.prompt - _words_around(tokenizer),
        vocabulary=s.vocab,
    )
    return _config(sizes, folder / "policy", folder / "sizes.json", device)


def _words_around(tokenizer: Any) -> int:
    """Tokens of a prompt whose observation is empty."""
    text = get_template("compact", history_length=0).render(History().view("w0", "", ("w0",), ()))
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _trainer(config: Config, folder: Path) -> Trainer:
    model, tokenizer = load_policy(folder / "policy")
    run = RunFolder(folder / "run")
    run.path.mkdir()
    return Trainer(config, run, model.to(config.run.device), tokenizer)


def _iterate(trainer: Trainer, number: int, device: str) -> dict[str, Any]:
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    found = trainer.iterate(number)
    return {
        "turns": found["turns"],
        "prompt_tokens": found["prompt_tokens"],
        "reply_tokens": found["response_tokens"],
        "learnt_tokens": trainer.learner.work.tokens,
        "iteration_s": found["iteration_s"],
        "seconds": phase_seconds(found),
        "tokens_per_s": found["perf/tokens_per_s"],
        "update_mfu": found["perf/update_mfu"],
        "mfu": found["perf/mfu"],
        "peak_memory_gb": torch.cuda.max_memory_allocated(device) / GB if on_cuda else None,
    }
