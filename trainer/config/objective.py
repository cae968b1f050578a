"""The base objective's section of a config. Every default cites the published value or says "ours".

Where a method is published with other settings than these, `PUBLISHED` has them: they hold unless
the config says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from trainer.config.sections import RolloutConfig, positive
from trainer.errors import ConfigError

PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # arXiv:2503.20783: no standard deviation, sums over a constant length.
        "dr_grpo": {"use_std": False, "aggregation": "dr_grpo"},
        # arXiv:2503.14476: clip higher, no KL, groups of equal outcomes are drawn again.
        "dapo": {"clip_high": 0.28, "dynamic_rounds": 10},
        # arXiv:2507.18071: one ratio a reply, no dual clip.
        "gspo": {
            "ratio": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "dual_clip": None,
            "aggregation": "seq-mean-token-mean",
        },
    }
)

CRITIC = frozenset(("ppo", "ppo_trajectory", "turn_gae"))
"""Objectives with a value model; they need no groups."""
ANCHORS = frozenset(("gigpo", "hgpo"))
"""Objectives that compare states which rollouts share."""
GRAPH = frozenset(("graphgpo",))
"""Objectives with a graph of a task's states."""
BATCH_WHITENED = frozenset(("reinforce_pp",))
"""Objectives whose baseline is the whole batch; they need no groups either."""


@dataclass(frozen=True, slots=True)
class AnchorConfig:
    """States that rollouts of one task share: GiGPO and HGPO."""

    gamma: float = 0.95  # published, of the step return
    weight: float = 1.0  # published, of GiGPO's step term
    similarity: float | None = None  # published: exact; a number: difflib ratio, GiGPO's variant
    depth: int = 2  # HGPO's K; published: the history length, 2 or 4
    alpha: float = 1.0  # published, HGPO's weights grow with (depth + 1) ** alpha
    base_group: bool = False  # published; true: HGPO's trajectory group as one more level

    def check(self) -> None:
        for name in ("gamma", "weight", "alpha"):
            positive(f"objective.anchors.{name}", getattr(self, name), zero=True)
        positive("objective.anchors.depth", self.depth, zero=True)
        _share("objective.anchors.gamma", self.gamma)
        if self.similarity is not None:
            _threshold("objective.anchors.similarity", self.similarity)


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """GraphGPO's graph of a task's states."""

    omega: float = 0.1  # published: ALFWorld 0.1, WebShop 0.2
    step_weight: float = 1.0  # published
    episode_weight: float = 1.0  # published
    normalize_distance: bool = False  # published; true: progress instead of distance
    similarity: float | None = None  # published: exact; a number merges states alike

    def check(self) -> None:
        positive("objective.graph.omega", self.omega)
        _share("objective.graph.omega", self.omega)
        for name in ("step_weight", "episode_weight"):
            positive(f"objective.graph.{name}", getattr(self, name), zero=True)
        if self.similarity is not None:
            _threshold("objective.graph.similarity", self.similarity)


@dataclass(frozen=True, slots=True)
class CriticConfig:
    """The value model of `ppo`, `ppo_trajectory` and `turn_gae`."""

    lr: float = 1e-5  # published
    clip: float = 0.5  # published, of values around the old ones
    # null: 1 for `ppo` (published), 0.95 over turns for the other two.
    gamma: float | None = None
    lam: float | None = None
    warmup_iterations: int = 0  # first iterations that train the critic alone

    def check(self) -> None:
        positive("objective.critic.lr", self.lr, zero=True)
        positive("objective.critic.clip", self.clip)
        positive("objective.critic.warmup_iterations", self.warmup_iterations, zero=True)
        for name in ("gamma", "lam"):
            if getattr(self, name) is not None:
                _share(f"objective.critic.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """The base objective. `none`: no reward reaches the policy, auxiliary objectives do."""

    name: Literal[
        "none",
        "grpo",
        "dr_grpo",
        "dapo",
        "gspo",
        "rloo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "gigpo",
        "hgpo",
        "graphgpo",
        "ppo",
        "ppo_trajectory",
        "turn_gae",
    ] = "grpo"
    flavor: Literal["paper", "code", "code_traj"] = "paper"
    use_std: bool = True  # false: differences from the mean, not divided
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    ratio: Literal["token", "sequence"] = "token"  # `sequence`: GSPO's
    clip_low: float = 0.2  # published
    clip_high: float = 0.2  # published; DAPO: 0.28
    dual_clip: float | None = 3.0  # published; null: off
    aggregation: Literal[
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",  # this and the next divide by rollout.max_new_tokens
        "dr_grpo",
    ] = "token-mean"
    kl_coef: float = 0.0  # ours for tiny models; published: 0.01
    kl_kind: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"  # published: loss; k1 only in the reward
    entropy_coef: float = 0.0  # published code: 0.001
    drop_constant_groups: bool = False  # zero advantage where all outcomes of a group are equal
    dynamic_rounds: int = 0  # DAPO: rounds of rollouts to fill the batch with mixed groups; 0: one
    overlong_buffer: int | None = None  # DAPO: the last so many tokens of a reply cost reward
    overlong_factor: float = 1.0  # published
    mask_truncated: bool = False  # leave out trajectories that ran out of steps

    @property
    def needs_groups(self) -> bool:
        """Whether a trajectory is judged by others of its task."""
        return self.name not in CRITIC | BATCH_WHITENED | {"none"}

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0 and self.kl_placement == "loss"

    @property
    def has_critic(self) -> bool:
        """Whether a value model is trained beside the policy."""
        return self.name in CRITIC

    def check(self) -> None:
        for section in (self.anchors, self.graph, self.critic):
            section.check()
        for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef", "overlong_factor"):
            positive(f"objective.{name}", getattr(self, name), zero=True)
        if self.clip_low >= 1.0:
            raise ConfigError(f"objective.clip_low={self.clip_low} must be below 1.")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ConfigError(
                f"objective.dual_clip={self.dual_clip} must exceed 1 (published: 3) or be null."
            )
        if self.kl_kind == "k1" and self.kl_placement == "loss":
            raise ConfigError(
                "objective.kl_kind=k1 with kl_placement=loss is refused: the gradient of k1 does "
                "not contain the reference. Use k2 or k3, or kl_placement=reward."
            )
        positive("objective.dynamic_rounds", self.dynamic_rounds, zero=True)
        if self.overlong_buffer is not None:
            positive("objective.overlong_buffer", self.overlong_buffer)
        if self.ratio == "sequence" and self.dual_clip is not None:
            raise ConfigError(
                f"objective.ratio=sequence has no dual clip, found dual_clip={self.dual_clip}. "
                "Set it to null."
            )
        if self.ratio == "sequence" and self.aggregation != "seq-mean-token-mean":
            raise ConfigError(
                f"objective.ratio=sequence is a mean over replies, found aggregation="
                f"{self.aggregation}. Set it to seq-mean-token-mean."
            )
        if self.needs_groups:
            return
        if self.dynamic_rounds:
            raise ConfigError(
                f"objective.dynamic_rounds={self.dynamic_rounds} draws groups of equal outcomes "
                f"again, and objective.name={self.name} has no groups. Set it to 0."
            )
        if self.drop_constant_groups:
            raise ConfigError(
                f"objective.drop_constant_groups is about groups, and objective.name={self.name} "
                "has none. Set it to false."
            )

    def check_rollout(self, rollout: RolloutConfig) -> None:
        """Raises `ConfigError` where it cannot be trained on such rollouts."""
        if rollout.rollouts == 1 and self.needs_groups:
            raise ConfigError(
                f"rollout.rollouts=1 gives objective.name={self.name} groups of one, "
                "whose advantage is 0: nothing would be learnt. Use 2 or more."
            )
        if self.overlong_buffer is not None and self.overlong_buffer > rollout.max_new_tokens:
            raise ConfigError(
                f"objective.overlong_buffer={self.overlong_buffer} are the last tokens of a "
                f"reply, and rollout.max_new_tokens={rollout.max_new_tokens}. Use at most that."
            )


def settings_of(name: str, former: ObjectiveConfig) -> dict[str, Any]:
    """What changes when `former` gets another name: fields of the section and their values.

    Those that the new objective was published with; and those that were set by the former name
    alone go back to their defaults, as do the sections that the new one does not read.
    """
    defaults = asdict(ObjectiveConfig())
    readers = {"anchors": ANCHORS, "graph": GRAPH, "critic": CRITIC}
    unread = {section: defaults[section] for section, names in readers.items() if name not in names}
    back = {
        field: defaults[field]
        for field, value in PUBLISHED.get(former.name, {}).items()
        if getattr(former, field) == value
    }
    return unread | back | dict(PUBLISHED.get(name, {}))


def _threshold(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ConfigError(f"{name}={value} must lie in (0, 1], or be null: exact.")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value} must lie in [0, 1].")
