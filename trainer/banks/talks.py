"""The conversations in which an oracle bank's branches begin, played again.

A bank holds what the policy was shown and what it sent, not its replies. In `window` context that
is all that a prompt is made of; a conversation (`prompt.context: chat`) holds the replies as well.
A rollout follows from the policy, the bank's seed and the rollout's number, so the policy that
collected the bank says the same again, and the rows of a bank are those of the run
(tests/trainer/chat/test_chat_bank.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_envs.prompting import Exchange
from oracles.bank import Bank, BankError
from oracles.bank_format import BankRow
from trainer.banks.policy import TrainedPolicy
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Trajectory

__all__ = ["Before", "check_collected", "turns_before"]

Before = Callable[[BankRow], Sequence[Turn]]
"""A row of a bank to the turns of its rollout before the root."""


def check_collected(bank: Bank, checkpoint: str) -> None:
    """Raises BankError unless the bank is of the checkpoint with this digest (SHA-256, hex)."""
    made_by = bank.header.provenance.get("checkpoint")
    if made_by == checkpoint:
        return
    raise BankError(
        f"The bank was collected by {bank.header.policy!r} (checkpoint "
        f"{str(made_by)[:12] if made_by else 'none'}), and the run has prompt.context=chat: a "
        "conversation holds what the policy itself said before a root, which this checkpoint "
        f"({checkpoint[:12]}) never did there. Build a bank with --policy RUN, replay the "
        "checkpoint that it was built with (--checkpoint), or train with prompt.context=window."
    )


def turns_before(policy: TrainedPolicy, rows: Sequence[BankRow]) -> Before:
    """Plays the rollouts of these rows again, each once.

    Args:
        policy: that collected the bank; on the same device, or its replies may be others.
        rows: whose roots will be asked for.

    Raises:
        BankError: a rollout comes out otherwise than the bank has it; says where.
    """
    wanted = sorted({(row.seed, row.rollout) for row in rows if row.branch.root_step > 0})
    played: dict[tuple[int, int], Trajectory] = {}
    for seed in sorted({seed for seed, _ in wanted}):
        numbers = [rollout for own, rollout in wanted if own == seed]
        found = policy.play(seed, numbers)
        played |= {(seed, n): trajectory for n, trajectory in zip(numbers, found, strict=True)}
    for row in rows:
        if row.branch.root_step > 0:
            _check_same(row, played[row.seed, row.rollout])

    def before(row: BankRow) -> Sequence[Turn]:
        t = row.branch.root_step
        return played[row.seed, row.rollout].turns[:t] if t > 0 else ()

    return before


def _check_same(row: BankRow, trajectory: Trajectory) -> None:
    t = row.branch.root_step
    theirs = tuple(
        Exchange(item.observation, item.action, item.command_valid) for item in row.branch.history
    )
    ours = trajectory.history_before(t).items
    turn = trajectory.turns[t] if t < len(trajectory.turns) else None
    seen = None if turn is None else (turn.observation, turn.admissible)
    if ours == theirs and seen == (row.expected.observation, row.expected.admissible):
        return
    at = next((k for k, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
              min(len(ours), t))  # fmt: skip
    raise BankError(
        f"Rollout {row.rollout} of the bank (task {row.branch.root.task_id!r}) comes out otherwise "
        f"when it is played again, from step {at} on: the policy's replies, which a conversation "
        "holds, are not those before the root. Replay the bank on the device and with the versions "
        "that it was built with, or build it again."
    )
