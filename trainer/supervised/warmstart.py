"""Warm start: supervised training of a policy on an oracle's demonstrations.

A fresh tiny policy always gets one, and a tokenizer made from the same texts. A given one
(`model.path`) gets one where `warmstart.given_model` says so. The result is a start for
reinforcement learning, not an end: `trainer.supervised.demonstrations` says what they lack.

Prompts, replies and masks come from the run's own template and tokenizer, so what is trained here
is what rollouts will show and parse. Of a reply, a fresh policy learns every token. A given one
learns the command, the closing tag and the end token (`warmstart.loss_tokens`): its thoughts stay
its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer import rng
from trainer.config import Config, ConfigError, WarmstartConfig
from trainer.learning.optim import gradient_norm, learning_rate
from trainer.learning.update import precision, step_counts
from trainer.metrics import mean_or_none
from trainer.models.policy import (
    collate,
    enable_gradient_checkpointing,
    micro_batches,
    token_logprobs,
)
from trainer.models.tiny import TinyConfig, build_model, train_tokenizer
from trainer.objectives import aggregate
from trainer.rollouts import tokens
from trainer.rollouts.chat import NOTHING_SAID
from trainer.rollouts.data import Segment, make_segment
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import TokenSet
from trainer.runs.folder import make_student, template_of
from trainer.runs.needs import warmstart_oracle
from trainer.supervised.demonstrations import Demonstration, demonstrate, demonstration_texts
from trainer.worlds.environments import TaskSet
from trainer.worlds.oracles import make_oracle
from trainer.worlds.tasks import make_env, split_tasks, tasks_at

__all__ = [
    "Demonstration",
    "Outcome",
    "demonstrate",
    "demonstration_texts",
    "segments",
    "supervised",
    "warm_given",
    "warm_policy",
]

Progress = Callable[[int, float], None]

# Rows of like length go together: a batch drawn at random would be padded by a third.
_MICRO_BATCH_TOKENS = 1536


@dataclass(frozen=True, slots=True)
class Outcome:
    """What supervised training did.

    Attributes:
        losses: of each step, in nats per token, refused ones included.
        nonfinite_steps: how many were refused because their gradient was not finite.
    """

    losses: tuple[float, ...]
    nonfinite_steps: int


def warm_policy(
    config: Config,
    task_set: TaskSet,
    progress: Progress | None = None,
    ready: Callable[[Any, Any], None] | None = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """A fresh tiny policy after its warm start: (model, tokenizer, report).

    The tokenizer is trained on the demonstrations' own texts. With `warmstart.demonstrations`
    0 the model stays as it was initialised. In a conversation it has places for whole episodes.

    Args:
        progress: called with (step, loss).
        ready: called with model and tokenizer before the model is trained; it may refuse them.
    """
    c, m = config.warmstart, config.model
    shown = _demonstrations(config, task_set, max(c.demonstrations, m.tokenizer_games))
    texts = demonstration_texts(shown, template_of(config))
    tokenizer = train_tokenizer(texts, m.vocab_size)
    shape = TinyConfig(m.hidden_size, m.intermediate_size, m.layers, m.heads, m.kv_heads)
    if config.prompt.context == "chat":
        longest = config.prompt.max_prompt_tokens + config.rollout.max_new_tokens
        shape = replace(shape, max_positions=max(shape.max_positions, longest))
    model = build_model(
        len(tokenizer),
        shape,
        seed=m.seed,
        pad_id=tokenizer.pad_token_id,
        end_id=tokenizer.eos_token_id,
    )
    if ready is not None:
        ready(model, tokenizer)
    outcome = Outcome((), 0)
    rows: list[Segment] = []
    if c.demonstrations > 0:
        student = make_student(config, model, tokenizer)
        rows = segments(shown[: c.demonstrations], student, c.trained_tokens)
        outcome = supervised(model, rows, c, pad_id=student.pad_id, progress=progress)
    return model, tokenizer, _report(config, model, tokenizer, shown, rows, outcome)


def warm_given(
    config: Config, task_set: TaskSet, model: Any, tokenizer: Any, progress: Progress | None = None
) -> dict[str, Any]:
    """Warm-starts a model that was loaded, in place and where it is; returns the report.

    Its tokenizer stays as it is. Any causal model of transformers will do, with a chat template
    where the run's prompt makes chat messages.

    Raises:
        ConfigError: no chat template, or no demonstration fits `prompt.max_prompt_tokens`.
    """
    c = config.warmstart
    student = make_student(config, model, tokenizer)
    shown = _demonstrations(config, task_set, c.demonstrations)
    rows = segments(shown, student, c.trained_tokens)
    if config.optim.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    outcome = supervised(
        model,
        rows,
        c,
        pad_id=student.pad_id,
        progress=progress,
        micro_batch_tokens=config.optim.micro_batch_tokens,
        bf16=config.run.dtype == "bfloat16",
    )
    return _report(config, model, tokenizer, shown, rows, outcome)


def _demonstrations(config: Config, task_set: TaskSet, count: int) -> list[Demonstration]:
    """`count` episodes of the oracle, on the tasks of the schedule.

    Raises:
        ConfigError: it sent no command in any of them.
    """
    c, template = config.warmstart, template_of(config)
    task_ids = split_tasks(config.env, task_set, config.env.split)
    env = make_env(config.env, task_set, config.env.split)
    name, field = warmstart_oracle(config)
    oracle = make_oracle(name, None, config.env.id, field=field)
    shown = [
        demonstrate(env, task, c, i, hidden=template.hidden, planner=oracle)
        for i, task in enumerate(tasks_at(task_ids, count, c.seed, 0))
    ]
    if shown and not any(demonstration.decisions for demonstration in shown):
        raise ConfigError(
            f"{field}={name} had a way on in none of {count} episodes, so there is nothing to "
            "learn from. Choose another, or raise env.max_steps."
        )
    return shown


def _report(
    config: Config,
    model: nn.Module,
    tokenizer: Any,
    shown: Sequence[Demonstration],
    rows: Sequence[Segment],
    outcome: Outcome,
) -> dict[str, Any]:
    losses = outcome.losses
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "oracle": warmstart_oracle(config)[0],
        "demonstrations": config.warmstart.demonstrations,
        "demonstration_success": mean_or_none(float(d.success) for d in shown),
        "injected_steps": sum(d.injected for d in shown),
        "refused_steps": sum(d.refused for d in shown),
        "rows": len(rows),
        "steps": len(losses),
        "nonfinite_steps": outcome.nonfinite_steps,
        "first_loss": losses[0] if losses and math.isfinite(losses[0]) else None,
        "last_loss": mean_or_none(loss for loss in losses[-20:] if math.isfinite(loss)),
    }


def segments(
    demonstrations: Sequence[Demonstration], student: Student, trained: TokenSet = "all"
) -> list[Segment]:
    """One segment per decision whose prompt fits and whose command a reply can send; of the
    reply, the `trained` tokens.

    `all` is the whole reply, tags and end token too. In chat the prompt holds the episode up to
    there, injected steps as if the policy had taken them; of those nothing is trained.
    """
    result = []
    for demonstration in demonstrations:
        chat = student.context == "chat"
        own = {view.step for view, _ in demonstration.decisions}
        said = NOTHING_SAID
        for view, command in demonstration.steps if chat else demonstration.decisions:
            prompt_ids = student.prompt(view, said)
            target = tokens.encode_reply(
                student.template,
                command,
                student.tokenizer,
                student.end_id,
                loss_tokens=trained,
            )
            said = student.answered(said, view, prompt_ids, target.ids)
            sent = student.sends(target.ids, command)
            if view.step in own and sent and student.fits(prompt_ids):
                mask = None if trained == "all" else target.loss_mask
                result.append(make_segment(prompt_ids, target.ids, mask=mask))
    return result


def supervised(
    model: nn.Module,
    rows: Sequence[Segment],
    config: WarmstartConfig,
    *,
    pad_id: int,
    progress: Progress | None = None,
    micro_batch_tokens: int = _MICRO_BATCH_TOKENS,
    bf16: bool = False,
) -> Outcome:
    """Token-mean cross-entropy on `rows`, AdamW, linear warm-up then linear decay to a tenth.

    The first `config.text_steps` steps train every token of a row but its first, the next
    `config.steps` only what the row trains. Copying a command from the list is learnt sooner from
    the environment's own repetitions than from ten reply tokens a row.

    A gradient that is not finite is not applied; the step is counted and keeps its place in the
    schedule. The model is in eval mode, during and after. `micro_batch_tokens` changes nothing but
    memory and time; with `bf16` forward passes are in bfloat16, weights and loss stay float32.

    Raises:
        ConfigError: there are no rows.
    """
    if not rows:
        raise ConfigError(
            "No demonstration fits the prompt limit: raise prompt.max_prompt_tokens. Large rooms, "
            "such as those of ALFWorld's own games, make long prompts."
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.peak_lr, weight_decay=0.01)
    device = next(model.parameters()).device
    losses: list[float] = []
    nonfinite = 0
    whole = [make_segment(row.ids[:1], row.ids[1:]) for row in rows] if config.text_steps else []
    total_steps = config.text_steps + config.steps
    # Not in train mode: dropout would draw from the global random state.
    model.eval()
    for step in range(total_steps):
        source = whole if step < config.text_steps else rows
        chosen = [source[i] for i in _batch(len(rows), config, step)]
        counts = step_counts(chosen, 1)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in micro_batches([len(row.ids) for row in chosen], micro_batch_tokens):
            batch = collate([chosen[i] for i in micro], pad_id=pad_id, device=device)
            with precision(device, bf16):
                logprobs = token_logprobs(model, batch).logprobs
            loss = aggregate(-logprobs, batch.mask_B_T, "token-mean", counts)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = gradient_norm(model.parameters())
        if math.isfinite(norm):
            if norm > 1.0:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(1.0 / norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config.peak_lr, config.warmup_steps, total_steps, step)
            optimizer.step()
        else:
            nonfinite += 1
        losses.append(total)
        if progress is not None:
            progress(step, losses[-1])
    optimizer.zero_grad(set_to_none=True)
    return Outcome(tuple(losses), nonfinite)


def _batch(n: int, config: WarmstartConfig, step: int) -> list[int]:
    """Row indices of one step: an endless sequence of permutations, cut into batches."""
    size = min(config.batch, n)
    places = range(step * size, (step + 1) * size)
    orders: dict[int, np.ndarray[Any, Any]] = {}
    for epoch in {place // n for place in places}:
        stream = rng.stream(config.seed, epoch, purpose=f"{rng.WARMSTART}/{rng.SHUFFLE}")
        orders[epoch] = stream.permutation(n)
    return [int(orders[place // n][place % n]) for place in places]
