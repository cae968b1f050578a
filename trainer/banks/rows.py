"""Roots of an oracle bank as training sees them: gates, prompts and targets, no environment.

Promises (tests/trainer/banks/test_bank_replay.py):

1. A branch that a run grows and keeps in a bank comes back with the gate, the reasons and the rows
   that it had in the run.
2. Prompts are made from what the student saw; the words of `Branch.detail` reach none.
"""

from __future__ import annotations

from collections.abc import Sequence

from oracles.bank_format import BankRow
from trainer.banks.talks import Before
from trainer.branches.branching import gated, with_rows
from trainer.branches.records import GrownRoot, RootChoice
from trainer.branches.targets import branch_prompts
from trainer.config import ConfigError, SeroConfig
from trainer.rollouts.rollout import Student

__all__ = ["grown_roots"]


def grown_roots(
    rows: Sequence[BankRow],
    student: Student,
    section: SeroConfig,
    max_target_tokens: int,
    before: Before | None = None,
) -> list[GrownRoot]:
    """One root a row of a bank, in their order, tokenised once; z is not measured yet.

    `choice` of a root is the row's number and the step of its root. Where roots were looked for,
    which oracle played on and how far (`pool`, `scheme`, `oracle`, `max_depth`) is the bank's and
    not the section's. `trainer.branches.branching.score` fills `logz`.

    Args:
        section: of the gate (`target`, `gamma`, `return_scale`) and of the targets.
        max_target_tokens: longest target, the end token included.
        before: the policy's turns before a root, for conversations; see `trainer.banks.talks`.

    Raises:
        ConfigError: a conversation (`prompt.context: chat`) without `before`; think mode
            `sampled`, whose thoughts no bank holds; or `full`, and the recorded oracle gave no
            thoughts.
    """
    if section.think_mode == "sampled":
        raise ConfigError(
            "auxiliary.sero.think_mode=sampled lets the policy think at the states of a branch, "
            "and a bank holds no thoughts of a policy. Use another think_mode."
        )
    if student.context == "chat" and before is None:
        raise ConfigError(
            "prompt.context=chat shows the policy's own replies up to the root, and a bank holds "
            "commands without replies. Use prompt.context=window."
        )
    roots = []
    for number, row in enumerate(rows):
        choice = RootChoice(number, row.branch.root_step)
        root = gated(choice, row.branch, row.own, section)
        prompts: Sequence[tuple[int, ...]] = ()
        if root.gate > 0:
            turns = before(row) if before is not None else ()
            prompts = branch_prompts(root.branch, student, section, turns)
        roots.append(with_rows(root, prompts, student, section, max_target_tokens))
    return roots
