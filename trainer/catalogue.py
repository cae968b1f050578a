"""What objectives there are: pure data, for `sero objectives` and for who chooses one.

One entry for every base objective of `trainer.config.objective.ObjectiveConfig.name` and every
auxiliary one of `trainer.methods.registry.METHODS`, in their order there.

Costs are forward passes without gradient, and forward-and-backward passes, on top of one plain
policy-gradient step, for each of the rows that are named. What a method adds to the base's own
pass costs nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["CATALOGUE", "NOT_TRAINABLE", "Entry", "Need", "chosen", "where_to_say"]

Need = Literal["groups", "critic", "snapshots", "oracle", "teacher", "analyser", "logits"]
"""What a method cannot do without, as it is set by default:

- groups: several rollouts of one task;
- critic: a value model beside the policy;
- snapshots: an environment that can be put back to a visited state;
- oracle: commands of something that knows the solution;
- teacher: a forward pass of a model that knows more, or of another one;
- analyser: a text model that reads finished trajectories;
- logits: the whole distribution over the vocabulary, of policy and teacher.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One objective.

    Attributes:
        name: of the config: `objective.name`, or the section below `auxiliary`.
        kind: base or auxiliary.
        title: what it is called, and in a few words what it does.
        source: where it was published, or "ours".
        arxiv: the paper's number; None without one that is known here.
        needs: see `Need`.
        forward: extra passes without gradient for each of `rows`.
        backward: extra passes with gradient for each of `rows`.
        rows: which rows these are; empty where there are no extra passes.
        section: of the config.
        page: name of its page in docs/objectives, without ending.
        extra: other costs; empty: none.
    """

    name: str
    kind: Literal["base", "auxiliary"]
    title: str
    source: str
    arxiv: str | None
    needs: tuple[Need, ...]
    forward: int
    backward: int
    rows: str
    section: str
    page: str
    extra: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "needs": list(self.needs)}


def chosen(words: str | None) -> list[Entry]:
    """Entries that have all of the words in their name, kind, title, source, number or needs.

    >>> [entry.name for entry in chosen("critic turns")]
    ['ppo_trajectory', 'turn_gae']
    """
    wanted = (words or "").lower().split()
    return [entry for entry in CATALOGUE if all(word in _text(entry) for word in wanted)]


def where_to_say(name: str) -> str | None:
    """How a config chooses the objective `name`, or why none can; None: there is no such objective.

    >>> where_to_say("gigpo")
    "'gigpo' is a base objective: --objective.name gigpo."
    >>> where_to_say("seed")
    "'seed' is an auxiliary objective: --auxiliary.seed '{}', or one of its fields."
    """
    if name in NOT_TRAINABLE:
        return f"{name!r} cannot be trained: {NOT_TRAINABLE[name]} (docs/objectives/{name}.md)."
    kinds = {entry.name: entry.kind for entry in CATALOGUE}
    if name not in kinds:
        return None
    if kinds[name] == "base":
        return f"{name!r} is a base objective: --objective.name {name}."
    return f"{name!r} is an auxiliary objective: --auxiliary.{name} '{{}}', or one of its fields."


def _text(entry: Entry) -> str:
    parts = (entry.name, entry.kind, entry.title, entry.source, entry.arxiv or "", *entry.needs)
    return " ".join(parts).lower()


def _base(
    name: str,
    title: str,
    source: str,
    arxiv: str | None,
    *needs: Need,
    extra: str = "",
    page: str | None = None,
) -> Entry:
    passes = (1, 1, "turns, by the critic") if "critic" in needs else (0, 0, "")
    return Entry(
        name, "base", title, source, arxiv, needs, *passes, "objective", page or name, extra
    )


def _auxiliary(
    name: str,
    title: str,
    source: str,
    arxiv: str | None,
    *needs: Need,
    forward: int = 0,
    backward: int = 0,
    rows: str = "",
    extra: str = "",
    page: str | None = None,
) -> Entry:
    passes, place = (forward, backward, rows), f"auxiliary.{name}"
    return Entry(
        name, "auxiliary", title, source, arxiv, needs, *passes, place, page or name, extra
    )


NOT_TRAINABLE: Mapping[str, str] = MappingProxyType(
    {
        "spo3": "3SPO is a set of functions here, since its search of states is not in a run",
        "gepo": "of GEPO only the centrality of states is here, since its equations are not known",
    }
)
"""Why objectives with a page are no `objective.name`, by the page's name."""

_TOLD = "turns with a context"

CATALOGUE: tuple[Entry, ...] = (
    _base("none", "No base: auxiliary objectives alone", "ours", None),
    _base(
        "grpo", "GRPO: returns normalised in a group", "Shao et al. 2024", "2402.03300", "groups",
    ),
    _base(
        "dr_grpo", "Dr. GRPO: no division by the spread", "Liu et al. 2025", "2503.20783", "groups",
        page="grpo",
    ),
    _base(
        "dapo", "DAPO: clip higher, groups of equal outcomes drawn again", "Yu et al. 2025",
        "2503.14476", "groups", extra="rollouts of the groups that are drawn again",
    ),
    _base("gspo", "GSPO: one ratio a reply", "Zheng et al. 2025", "2507.18071", "groups"),
    _base(
        "rloo", "RLOO: against the mean of the others", "Ahmadian et al. 2024",
        "2402.14740", "groups",
    ),
    _base(
        "reinforce_pp", "REINFORCE++: returns whitened over the batch", "Hu et al. 2025",
        "2501.03262",
    ),
    _base(
        "reinforce_pp_baseline", "REINFORCE++-baseline: less the group's mean, then whitened",
        "Hu et al. 2025", "2501.03262", "groups", page="reinforce_pp",
    ),
    _base(
        "gigpo", "GiGPO: also compares turns in the same state", "Feng et al. 2025",
        "2505.10978", "groups",
    ),
    _base(
        "hgpo", "HGPO: compares turns with the same last states", "HGPO 2026",
        "2602.22817", "groups",
    ),
    _base(
        "graphgpo", "GraphGPO: distance to success in a graph of states", "GraphGPO 2026",
        "2605.26684", "groups",
    ),
    _base(
        "ppo", "PPO: a critic, each turn an episode of its own", "Schulman et al. 2017",
        "1707.06347", "critic",
    ),
    _base(
        "ppo_trajectory", "PPO with GAE along the tokens of all turns", "Schulman et al. 2015",
        "1506.02438", "critic", page="ppo",
    ),
    _base(
        "turn_gae", "GAE over turns, one value a turn", "Schulman et al. 2015",
        "1506.02438", "critic", page="ppo",
    ),
    _auxiliary(
        "sero", "SERO: executed oracle branches, gated and weighted by reach", "SERO 2026", None,
        "snapshots", "oracle", forward=1, backward=1, rows="branch states of open gates",
    ),
    _auxiliary(
        "serl", "SERL: command tokens weighted by a teacher that saw what came of them",
        "public code, OliverLeeXZ/SERL", None, "teacher", forward=1, rows=_TOLD,
    ),
    _auxiliary(
        "rlsd", "RLSD: all tokens weighted by a teacher that knows a solution", "RLSD 2026",
        "2604.03128", "groups", "teacher", forward=1, rows=_TOLD,
    ),
    _auxiliary(
        "seed", "SEED: the policy's own hindsight skills, distilled", "SEED 2026", "2607.14777",
        "analyser", "teacher", forward=1, rows="turns with a skill",
        extra="one analysis generated a trajectory",
    ),
    _auxiliary(
        "sdar", "SDAR: skills of a library, distilled through a gate", "SDAR 2026", "2605.15155",
        "teacher", forward=1, rows="turns with a skill",
    ),
    _auxiliary(
        "skill_sd", "Skill-SD: importance-weighted k3 to the skilled policy",
        "published with SDAR 2026", "2605.15155", "teacher", forward=1, rows="turns with a skill",
    ),
    _auxiliary(
        "opid", "OPID: the skilled policy's opinion, added to the advantage",
        "public code, jinyangwu/OPID", None, "analyser", "teacher", forward=2,
        rows="turns with both skills", extra="one analysis generated a trajectory",
    ),
    _auxiliary(
        "opd", "OPD: on-policy distillation of sampled tokens", "Thinking Machines 2025", None,
        "teacher", forward=1, rows="turns",
    ),
    _auxiliary(
        "gkd", "GKD: a divergence to a teacher, on own samples and on data", "Agarwal et al. 2023",
        "2306.13649", "oracle", "teacher", "logits", forward=1, backward=1,
        rows="turns, or those of the data",
    ),
    _auxiliary(
        "opsd", "OPSD: a divergence to the policy that knows more", "Zhao et al. 2026",
        "2601.18734", "groups", "teacher", "logits", forward=1, backward=1, rows=_TOLD,
    ),
    _auxiliary(
        "opsd_legacy", "OPSD as in published tables: NLL of own samples", "public code, SDAR",
        "2605.15155", "groups", "teacher", forward=1, rows=_TOLD, page="opsd",
    ),
    _auxiliary(
        "sdpo", "SDPO: a slow copy that saw a solution or the feedback",
        "public code, lasgroup/SDPO", None, "teacher", "logits", forward=1, backward=1, rows=_TOLD,
    ),
    _auxiliary(
        "dagger", "DAgger: the oracle's command at visited states", "Ross et al. 2011", "1011.0686",
        "snapshots", "oracle", backward=1, rows="states of failed rollouts",
    ),
    _auxiliary(
        "corrections", "On-policy expert corrections", "2025", "2512.14895", "snapshots", "oracle",
        backward=1, rows="states of solved corrections",
    ),
    _auxiliary(
        "sft", "Fine-tuning on the oracle's episodes", "ours", None, "oracle", backward=1,
        rows="turns of oracle episodes",
    ),
    _auxiliary(
        "expert_iteration", "Expert iteration: own successes", "Anthony et al. 2017", "1705.08439",
    ),
    _auxiliary(
        "step_dpo", "Step-DPO: the oracle's reply before the policy's", "Lai et al. 2024",
        "2406.18629", "snapshots", "oracle", forward=2, backward=2, rows="roots",
    ),
    _auxiliary(
        "chord", "CHORD: the base gives way to weighted fine-tuning", "Zhang et al. 2025",
        "2508.11408", "oracle", backward=1, rows="turns of oracle episodes",
    ),
    _auxiliary(
        "luffy", "LUFFY: oracle episodes join the groups", "Yan et al. 2025", "2504.14945",
        "groups", "oracle", forward=1, backward=1, rows="turns of oracle episodes",
    ),
    _auxiliary(
        "format_only", "Format only, the control: no command is trained", "ours", None,
        backward=1, rows="well-formed turns",
    ),
)  # fmt: skip
