"""Warm start: demonstrations of a planner, and supervised training of the policy on them.

What it simplifies: the demonstrator sees hidden objects, so some of its commands cannot be
inferred from the prompt; the policy that results is a start for reinforcement learning, not an
end. A plain demonstration never contains a refused command, and a policy cloned from such
demonstrations repeats inadmissible commands for ever; therefore some steps are replaced by random
admissible and by inadmissible commands. These enter the history and are never trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from agent_envs.prompting import History, PromptTemplate, PromptView, command_verb
from oracles.base import Planner, PlanStatus
from trainer import rng
from trainer.config import Config, ConfigError, WarmstartConfig
from trainer.data import Segment, make_segment
from trainer.environments import TaskSet
from trainer.metrics import mean_or_none
from trainer.models.tiny import TinyConfig, build_model, train_tokenizer
from trainer.objectives import aggregate
from trainer.optim import gradient_norm, learning_rate
from trainer.oracle_registry import make_planner
from trainer.policy import collate, micro_batches, token_logprobs
from trainer.rollout import Student
from trainer.run_folder import make_student, template_of
from trainer.update import step_counts
from trainer.worlds import make_env, split_tasks, tasks_at

__all__ = [
    "Demonstration",
    "Outcome",
    "demonstrate",
    "demonstration_texts",
    "segments",
    "supervised",
    "warm_policy",
]

Progress = Callable[[int, float], None]

# Rows of like length go together: a batch drawn at random would be padded by a third.
_MICRO_BATCH_TOKENS = 1536


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode.

    Attributes:
        task_id: the task.
        decisions: (what the student would see, the planner's command), one for each step that
            the planner took. Injected steps are in the views' histories only.
        success: the episode was won.
        injected, refused: replaced steps, and how many of all steps the env refused.
    """

    task_id: str
    decisions: tuple[tuple[PromptView, str], ...]
    success: bool
    injected: int
    refused: int


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
    config: Config, task_set: TaskSet, progress: Progress | None = None
) -> tuple[Any, Any, dict[str, Any]]:
    """A fresh tiny policy after its warm start: (model, tokenizer, report).

    The tokenizer is trained on the demonstrations' own texts. With `warmstart.demonstrations`
    0 the model stays as it was initialised.
    """
    c, template = config.warmstart, template_of(config)
    task_ids = split_tasks(config.env, task_set, config.env.split)
    env = make_env(config.env, task_set, config.env.split)
    planner = make_planner(None, config.env.id)
    count = max(c.demonstrations, config.model.tokenizer_games)
    tasks = tasks_at(task_ids, count, c.seed, 0)
    demonstrations = [
        demonstrate(env, task, c, i, hidden=template.hidden, planner=planner)
        for i, task in enumerate(tasks)
    ]
    tokenizer = train_tokenizer(
        demonstration_texts(demonstrations, template), config.model.vocab_size
    )
    m = config.model
    model = build_model(
        len(tokenizer),
        TinyConfig(m.hidden_size, m.intermediate_size, m.layers, m.heads, m.kv_heads),
        seed=m.seed,
        pad_id=tokenizer.pad_token_id,
        end_id=tokenizer.eos_token_id,
    )
    outcome = Outcome((), 0)
    rows: list[Segment] = []
    if c.demonstrations > 0:
        student = make_student(config, model, tokenizer)
        rows = segments(demonstrations[: c.demonstrations], student)
        outcome = supervised(model, rows, c, pad_id=student.pad_id, progress=progress)
    losses = outcome.losses
    return (
        model,
        tokenizer,
        {
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": len(tokenizer),
            "demonstrations": c.demonstrations,
            "demonstration_success": mean_or_none(float(d.success) for d in demonstrations),
            "injected_steps": sum(d.injected for d in demonstrations),
            "refused_steps": sum(d.refused for d in demonstrations),
            "rows": len(rows),
            "steps": len(losses),
            "nonfinite_steps": outcome.nonfinite_steps,
            "first_loss": losses[0] if losses and math.isfinite(losses[0]) else None,
            "last_loss": mean_or_none(loss for loss in losses[-20:] if math.isfinite(loss)),
        },
    )


def demonstrate(
    env: gymnasium.Env[str, str],
    task_id: str,
    config: WarmstartConfig,
    index: int = 0,
    *,
    hidden: Collection[str] = (),
    planner: Planner[Any] | None = None,
) -> Demonstration:
    """Plays one episode: the planner's next command, with some steps replaced.

    The draws come from the stream (config.seed, task, index, "warmstart"). Refused replacements are
    never of the `hidden` verbs, which the prompt does not list; random ones are never `help`, whose
    long answer would only fill the window. Where nothing can be listed, as on WebShop's first page,
    no random command is drawn. An episode in which the planner (None: the environment's own) has
    no way left, or not within the remaining steps, ends there.
    """
    replaced = config.random_share + config.inadmissible_share
    draws = rng.stream(config.seed, task=task_id, rollout=index, purpose=rng.WARMSTART)
    if planner is None:
        assert env.spec is not None, "made by gymnasium.make"
        planner = make_planner(None, env.spec.id)
    observation, info = env.reset(options={"task_id": task_id})
    history = History()
    decisions: list[tuple[PromptView, str]] = []
    offered: dict[str, None] = {}
    injected = refused = 0
    plan: list[str] = []
    done = False
    while not done:
        admissible: tuple[str, ...] = info["admissible_actions"]
        if not plan:
            unwrapped: Any = env.unwrapped
            answer = planner.plan(unwrapped.privileged(), info["steps_left"], None)
            if answer.status is not PlanStatus.FOUND:
                break
            plan = list(answer.actions)
        listed = [command for command in admissible if command_verb(command) not in hidden]
        stale = [command for command in offered if command not in admissible]
        offered.update(dict.fromkeys(listed))
        # `help` answers with a page of text that no policy needs to read.
        choices = [command for command in admissible if command != "help"]
        kind = draws.random()
        if kind < config.random_share and choices:
            command = choices[int(draws.integers(len(choices)))]
        elif config.random_share <= kind < replaced and stale:
            # Offered earlier in the episode and no longer: the refusals a policy really earns.
            command = stale[int(draws.integers(len(stale)))]
        else:
            command = plan[0]
            view = history.view(info["goal"], observation, admissible, info["action_templates"])
            decisions.append((view, command))
        following, _, terminated, truncated, info = env.step(command)
        if command == plan[0]:
            plan.pop(0)
        else:
            injected += 1
            plan = []
        valid = bool(info["command_valid"])
        refused += not valid
        history = history.append(observation, command, valid)
        observation, done = following, terminated or truncated
    return Demonstration(task_id, tuple(decisions), bool(info["success"]), injected, refused)


def demonstration_texts(
    demonstrations: Sequence[Demonstration], template: PromptTemplate
) -> Iterator[str]:
    """Prompts and replies as the policy will see them: what a fresh tokenizer is trained on."""
    for demonstration in demonstrations:
        for view, command in demonstration.decisions:
            rendered = template.render(view)
            if isinstance(rendered, str):
                yield rendered
            else:
                yield from (message["content"] for message in rendered)
            yield template.format_command(command).text


def segments(demonstrations: Sequence[Demonstration], student: Student) -> list[Segment]:
    """One segment per decision that fits; the whole reply is trained, tags and end token too."""
    result = []
    for demonstration in demonstrations:
        for view, command in demonstration.decisions:
            prompt_ids = student.prompt(view)
            if student.fits(prompt_ids):
                result.append(make_segment(prompt_ids, student.target(command).ids))
    return result


def supervised(
    model: nn.Module,
    rows: Sequence[Segment],
    config: WarmstartConfig,
    *,
    pad_id: int,
    progress: Progress | None = None,
) -> Outcome:
    """Token-mean cross-entropy on `rows`, AdamW, linear warm-up then linear decay to a tenth.

    The first `config.text_steps` steps train every token of a row but its first, the next
    `config.steps` only what the row trains. Copying a command from the list is learnt sooner from
    the environment's own repetitions than from ten reply tokens a row.

    A gradient that is not finite is not applied; the step is counted and keeps its place in the
    schedule. The model is in eval mode, during and after.

    Raises:
        ConfigError: there are no rows.
    """
    if not rows:
        raise ConfigError(
            "No demonstration fits the prompt limit: raise prompt.max_prompt_tokens. Large rooms, "
            "such as those of ALFWorld's own games, make long prompts."
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01)
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
        for micro in micro_batches([len(row.ids) for row in chosen], _MICRO_BATCH_TOKENS):
            batch = collate([chosen[i] for i in micro], pad_id=pad_id, device=device)
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
                group["lr"] = learning_rate(config.lr, config.warmup_steps, total_steps, step)
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
