"""What an auxiliary objective is to the training loop.

The maths of an objective is in `trainer.auxiliary`; a `Method` is the glue between it and recorded
turns. A run may have several. None of them touches what the environments paid, and with weight 0,
or with nothing to learn from, the base loss and its gradient are those of the base alone, bit for
bit (tests/trainer/test_sero_promises.py, tests/trainer/methods/).

An iteration goes: `start_ahead` and `prepare` once, under the weights that made the rollouts, with
the policy's own passes between them; then for every optimiser step `token_term` (what the method
does to the policy's own sampled tokens, in the base's forward pass) and `backward` (what needs a
forward pass of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
from torch import Tensor, nn

from trainer.rollouts.data import Segment, Turn

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.generation.base import Sampler
    from trainer.models.policy import SegmentBatch
    from trainer.rollouts.rollout import Student, Trajectory

__all__ = ["Method", "PassLimits", "Rollouts", "Setup", "Step", "TokenTerm"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What methods are made from.

    Attributes:
        config: of the run.
        student: how observations become prompts.
        model: the policy that is trained; a method keeps no reference to its values.
        make_env: a new environment of the training split, of the method's own. None where turns
            come from a file and nothing can be played.
        sampler: generates with the acting policy; None likewise.
    """

    config: Config
    student: Student
    model: nn.Module
    make_env: Callable[[], gymnasium.Env[str, str]] | None = None
    sampler: Sampler | None = None


@dataclass(frozen=True, slots=True)
class Rollouts:
    """One iteration's rollouts.

    Attributes:
        iteration: its number.
        turns: M turns of all trajectories, in order.
        segments: one a turn, with the behaviour log-probs that the ratio uses; turns that are
            left out of the base loss have no trained token.
        trajectories: with snapshots and histories; empty where turns come from a file.
    """

    iteration: int
    turns: Sequence[Turn]
    segments: Sequence[Segment]
    trajectories: Sequence[Trajectory] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step of an iteration.

    Attributes:
        iteration, epoch: where.
        index, count: the step is the `index`-th of `count` in its epoch.
        turns: indices of the turns whose segments this step trains.
    """

    iteration: int
    epoch: int
    index: int
    count: int
    turns: Sequence[int]


@dataclass(frozen=True, slots=True)
class PassLimits:
    """How a pass over segments is cut: none of it changes a result beyond floating point."""

    micro_batch_tokens: int
    pad_id: int
    bf16: bool = False
    packing: bool | None = None  # see `trainer.models.packed_attention.use_packing`

    @classmethod
    def of(cls, config: Config, student: Student) -> PassLimits:
        """Those of a run."""
        bf16 = config.run.dtype == "bfloat16"
        optim = config.optim
        return cls(optim.micro_batch_tokens, student.pad_id, bf16, optim.packing)


class TokenTerm:
    """A method's part in the base's forward pass, for one optimiser step.

    Axis letters: B rows of a micro-batch, T tokens. `turns_B` are the rows' turn indices.
    """

    def needs(self, turn: int) -> bool:
        """Whether this turn takes part even if its advantage is 0."""
        return False

    def advantages(
        self, adv_B_T: Tensor, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]
    ) -> Tensor:
        """The advantages to train with; `new_B_T` is detached."""
        return adv_B_T

    def loss(self, new_B_T: Tensor, batch: SegmentBatch, turns_B: Sequence[int]) -> Tensor | None:
        """This micro-batch's part of the term, weight included; the parts of a step add up."""
        return None


class Method:
    """An auxiliary objective in a run. Subclasses override what they need."""

    name: ClassVar[str]

    def __init__(self, setup: Setup, section: Any) -> None:
        self.setup = setup
        self.section = section

    @property
    def weight(self) -> float:
        """The coefficient of the method's loss; 0 measures and does not train."""
        return float(self.section.weight)

    def start_ahead(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Start what needs no model, to be waited for in `prepare`: passes over the rollouts come
        between. Nothing of it may touch the model, or what another method or a rollout uses."""

    def abandon(self) -> None:
        """The iteration broke off after `start_ahead`: end what was started. Twice is no error."""

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        """Look at an iteration's rollouts, under the frozen weights that made them."""

    def joined(self) -> Sequence[Turn]:
        """Turns of others that join the groups of the rollouts (LUFFY); known after `prepare`."""
        return ()

    def base_scale(self, iteration: int) -> float:
        """Factor of the base loss."""
        return 1.0

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        """Advantages of each turn's tokens, reshaped once an iteration (OPID)."""
        return advantages

    def token_term(self, step: Step) -> TokenTerm | None:
        """Its part in the base's forward pass; None: it has none in this step."""
        return None

    def has_pass(self, step: Step) -> bool:
        """Whether `backward` has anything to do in this step."""
        return False

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        """Accumulates weight times the gradient of the loss; returns the loss without weight."""
        raise NotImplementedError(f"{self.name} has no pass of its own.")

    def finished_step(self, model: nn.Module) -> None:
        """Called after an optimiser step that changed the policy (teachers that follow it)."""

    def finished_iteration(self, iteration: int, model: nn.Module) -> None:
        """Called after the last optimiser step of an iteration."""

    def metrics(self) -> Mapping[str, Any]:
        """Figures of the iteration, keys beginning with the method's name."""
        return {}

    def records(self, trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, Any]]:
        """What is written to `roots.jsonl`: what the student could see, never what is hidden."""
        return ()

    def close(self) -> None:
        """The run is over: end processes and environments of the method's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Tensors that a resumed run needs to go on; empty where all follows from the seed."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Raises ValueError where it does not fit."""
        if tensors:
            raise ValueError(f"{self.name} keeps no state, found {sorted(tensors)[0]!r}.")
