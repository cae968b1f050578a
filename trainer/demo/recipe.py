"""The recipe of `sero demo`: which tiny policy learns what, for how long.

Everything that one would tune is in `DemoRecipe`; `QUICK` is the demonstration itself,
`COMPARISON` what `sero demo --seeds N` runs for every seed and arm. The choices are ours, made so
that two CPU cores suffice; none of them is a published setting.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agent_envs.alfworld.model import TaskType
from trainer.config import (
    AuxiliaryConfig,
    Config,
    EnvConfig,
    EvalConfig,
    FormatOnlyConfig,
    GeneratedConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    PromptConfig,
    RolloutConfig,
    RunConfig,
    SeroConfig,
    WarmstartConfig,
)

HELD_OUT = ("valid_seen", "valid_unseen")


class Arm(StrEnum):
    """What is compared. All arms of a seed start from the same warm-started policy."""

    WARM = "warm_start"
    """No further training: where the others start."""
    GRPO = "grpo"
    SERO = "grpo_sero"
    """GRPO with SERO's branches."""
    FORMAT = "format_only"
    """A control: trains the format of the policy's own well-formed replies, as SERO's loss also
    does, and no decision."""
    GRPO_FORMAT = "grpo_format"
    """A control: GRPO with that format loss in the place of SERO's. Where replies are well-formed
    already the loss of `FORMAT` is nearly 0, and AdamW, which scales every gradient alike, turns
    what is left of it into steps of full size; beside GRPO's gradient it stays small."""


@dataclass(frozen=True, slots=True)
class DemoRecipe:
    """All choices of a demonstration. Sizes are counts unless a name says otherwise."""

    task_types: tuple[str, ...] = ("look_at_obj_in_light", "pick_and_place_simple")
    """Task types to play; none named: all six."""
    receptacles: int | None = 6
    """Receptacles of a generated room; None: the small preset's 8."""
    objects: int | None = 5
    """Objects of a generated room; None: the small preset's 8."""
    train_games: int = 4000
    """Generated games to train on."""
    held_out: int = 200
    """Tasks of the evaluation, half of them in rooms that training never shows."""
    eval_temperature: float = 0.4
    """Published for ALFWorld; 0 is greedy, and a greedy policy repeats what was refused."""
    max_steps: int = 15
    """Steps of an episode."""
    max_prompt_tokens: int = 512
    """A longer prompt ends the episode."""
    hidden_size: int = 128
    """Width of the policy; with 2 layers it has 0.48 million parameters."""
    layers: int = 2
    """Layers of the policy."""
    demonstrations: int = 800
    """Planner demonstrations of the warm start."""
    text_steps: int = 250
    """Warm-start steps on whole rows, the environment's text included."""
    warm_steps: int = 250
    """Warm-start steps after those, on the replies alone."""
    warm_lr: float = 3e-3
    """Peak learning rate of the warm start."""
    iterations: int = 40
    """Iterations of reinforcement learning."""
    tasks: int = 8
    """Groups of rollouts in an iteration."""
    rollouts: int = 8
    """Rollouts in a group."""
    updates: int = 2
    """Optimiser steps in an iteration."""
    lr: float = 3e-4
    """Learning rate; it falls linearly to a tenth."""
    grad_clip: float = 1.0
    """Largest gradient norm; 0: no limit."""
    sero_weight: float = 0.1
    """Weight of SERO's loss."""
    format_weight: float = 0.1
    """Weight of the controls' format loss."""
    threads: int = 1
    """Threads of torch."""

    def config(self, arm: Arm, seed: int, start: Path | None = None) -> Config:
        """The run of one arm and seed.

        Args:
            arm: what to train with; `Arm.WARM` gives no iterations.
            seed: keys weights, warm start and every draw of the run. The games are the same for
                all seeds.
            start: a saved policy to start from; None: a fresh one after its warm start.

        Raises:
            ConfigError: the choices make no run.
        """
        real = real_data()
        auxiliary = AuxiliaryConfig()
        if arm is Arm.SERO:
            auxiliary = AuxiliaryConfig(sero=SeroConfig(weight=self.sero_weight))
        elif arm in (Arm.FORMAT, Arm.GRPO_FORMAT):
            control = FormatOnlyConfig(weight=self.format_weight)
            auxiliary = AuxiliaryConfig(format_only=control)
        each = self.held_out // len(HELD_OUT)
        steps = max(self.iterations * self.updates, 1)
        config = Config(
            run=RunConfig(
                seed=seed,
                iterations=0 if arm is Arm.WARM else self.iterations,
                threads=self.threads,
            ),
            env=EnvConfig(
                data=None if real else "generated",
                generated=GeneratedConfig(
                    preset="small",
                    train=self.train_games,
                    valid_seen=each,
                    valid_unseen=each,
                    task_types=self.task_types,
                    receptacles=self.receptacles,
                    objects=self.objects,
                ),
                task_types=self.task_types,
                max_steps=self.max_steps,
            ),
            prompt=PromptConfig(max_prompt_tokens=self.max_prompt_tokens),
            model=ModelConfig(
                path=None if start is None else str(start),
                hidden_size=self.hidden_size,
                intermediate_size=3 * self.hidden_size,
                layers=self.layers,
                seed=seed,
            ),
            rollout=RolloutConfig(tasks=self.tasks, rollouts=self.rollouts),
            objective=ObjectiveConfig(name="none" if arm is Arm.FORMAT else "grpo"),
            auxiliary=auxiliary,
            optim=OptimConfig(
                lr=self.lr,
                steps=self.updates,
                # A short run is not all warm-up.
                warmup_steps=min(OptimConfig().warmup_steps, steps // 4),
                decay_steps=steps,
                grad_clip=self.grad_clip,
            ),
            eval=EvalConfig(
                splits=HELD_OUT,
                tasks=each,
                temperature=self.eval_temperature,
                initial=arm is Arm.WARM or start is None,
            ),
            warmstart=WarmstartConfig(
                demonstrations=self.demonstrations,
                text_steps=self.text_steps,
                steps=self.warm_steps,
                lr=self.warm_lr,
                seed=seed,
            ),
        )
        config.check()
        return config


QUICK = DemoRecipe()
"""`sero demo`: minutes on two cores."""

COMPARISON = DemoRecipe(iterations=60, held_out=500)
"""`sero demo --seeds N`, per seed and arm."""


def real_data() -> str | None:
    """The environment variable that names real games, if one is set."""
    for name in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA"):
        if os.environ.get(name):
            return name
    return None


def on_real_games(recipe: DemoRecipe) -> DemoRecipe:
    """`recipe` for real rooms, which hold four times as much: longer prompts, fewer of them.

    All six task types, since two of them alone have fewer than 200 held-out games.
    """
    return replace(
        recipe,
        task_types=tuple(str(task_type) for task_type in TaskType),
        max_steps=20,
        max_prompt_tokens=1024,
        demonstrations=recipe.demonstrations // 2,
        text_steps=recipe.text_steps // 3,
        warm_steps=recipe.warm_steps // 2,
        iterations=max(recipe.iterations // 10, 1),
    )
