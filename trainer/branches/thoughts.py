"""Branches of a conversation in which the policy thinks for itself: one step after another.

With `auxiliary.sero.think_mode: sampled` the target of a branch state is what the policy thinks
there, and then the oracle's command. In a conversation (`prompt.context: chat`) that target is part
of every later prompt, so the thoughts of a step are sampled when those before it are known: of all
branches together, one batch a step.

Promises (tests/trainer/chat/test_chat_thoughts.py):

1. Step k of a branch is asked behind the rollout's own conversation up to the root and the targets
   of the steps before k, id for id.
2. A thought comes from the same stream as in `window` context, keyed by its group and its step, so
   it does not depend on which other branches there are.
3. A step without a target makes the whole branch invalid, and it is asked nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from agent_envs.prompting import PromptView
from trainer import rng
from trainer.branches.branching import THOUGHT, Brancher, score
from trainer.branches.records import GrownRoot
from trainer.branches.targets import PROMPT_TOO_LONG, branch_talk, branch_target, branch_views
from trainer.generation.base import GenerationRequest
from trainer.methods.protocol import PassLimits
from trainer.rollouts.chat import Conversation
from trainer.rollouts.data import Segment, make_segment
from trainer.rollouts.rollout import Trajectory
from trainer.rollouts.tokens import ReplyTarget

__all__ = ["ThinkingBrancher"]


@dataclass(slots=True)
class _Growing:
    """An open branch whose thoughts are being sampled, up to some step."""

    root: GrownRoot
    uid: str
    views: Sequence[PromptView]
    said: Conversation
    rows: list[Segment] = field(default_factory=list)
    z_rows: list[Segment] = field(default_factory=list)
    reason: str | None = None

    def asks(self, k: int) -> bool:
        """Whether step k is still to be asked."""
        return self.reason is None and k < len(self.views)

    def finished(self) -> GrownRoot:
        """The root with its rows; invalid and without any where a step has no target."""
        if self.reason is not None:
            return replace(self.root, valid=False, reasons=(self.reason,), gate=0.0)
        return replace(self.root, rows=tuple(self.rows), z_rows=tuple(self.z_rows))


class ThinkingBrancher(Brancher):
    """A `Brancher` for conversations and sampled thoughts."""

    def finish(
        self,
        iteration: int,
        roots: Sequence[GrownRoot],
        trajectories: Sequence[Trajectory],
        model: nn.Module,
    ) -> list[GrownRoot]:
        growing = {
            place: self._growing(root, trajectories[root.choice.index])
            for place, root in enumerate(roots)
            if root.gate > 0
        }
        for k in range(max((len(branch.views) for branch in growing.values()), default=0)):
            self._think(iteration, k, [b for b in growing.values() if b.asks(k)])
        grown = [
            growing[place].finished() if place in growing else root
            for place, root in enumerate(roots)
        ]
        return score(grown, model, PassLimits.of(self.config, self.student))

    def _growing(self, root: GrownRoot, trajectory: Trajectory) -> _Growing:
        before = trajectory.turns[: root.choice.t]
        said = branch_talk(root.branch, self.student, self.section, before)
        return _Growing(root, trajectory.episode.uid, branch_views(root.branch), said)

    def _think(self, iteration: int, k: int, branches: Sequence[_Growing]) -> None:
        """Samples what the policy thinks at step `k` of these branches, and makes its targets."""
        c, student = self.config, self.student
        asked: list[tuple[_Growing, tuple[int, ...]]] = []
        for branch in branches:
            prompt_ids = student.prompt(branch.views[k], branch.said)
            if student.fits(prompt_ids):
                asked.append((branch, prompt_ids))
            else:
                branch.reason = PROMPT_TOO_LONG
        if not asked:
            return
        requests = [
            GenerationRequest(
                prompt_ids,
                rng.stream(c.run.seed, iteration, branch.uid, 0, k, THOUGHT),
                c.rollout.max_new_tokens,
                c.rollout.temperature,
                session=f"{THOUGHT}/{iteration}/{branch.uid}/{branch.root.choice.index}",
            )
            for branch, prompt_ids in asked
        ]
        assert self.sampler is not None
        replies = self.sampler.generate(requests)
        for (branch, prompt_ids), reply in zip(asked, replies, strict=True):
            step = branch.root.branch.steps[k]
            target = branch_target(
                step, prompt_ids, student, self.section, c.rollout.max_new_tokens, reply.ids
            )
            if not isinstance(target, ReplyTarget):
                branch.reason = target
                continue
            branch.rows.append(make_segment(prompt_ids, target.ids, mask=target.loss_mask))
            branch.z_rows.append(make_segment(prompt_ids, target.ids, mask=target.z_mask))
            branch.said = student.answered(branch.said, branch.views[k], prompt_ids, target.ids)
