"""What a privileged oracle gives away: commands that nobody could tell from what the student read.

A student that imitates an oracle learns its commands from its own prompts. Where a command depends
on what the prompts do not say, there is nothing to learn but the guess. The audit counts such
commands, by rules that read the student's side of a branch alone: its record up to the root, the
branch's observations and commands. What the rules are is said in `oracles.leak_alfworld` and
`oracles.leak_webshop`. The figures are for people; they enter no prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oracles.branch import Branch

EXAMPLES = 5
"""Leaks that are listed in full."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A command that the student could not have told."""

    k: int
    """Its step in the branch, from 0."""
    kind: str
    why: str
    """In words, for people."""


@dataclass(frozen=True, slots=True)
class LeakExample:
    """A leak, and where it is."""

    task_id: str
    k: int
    command: str
    why: str


@dataclass(frozen=True, slots=True)
class LeakFigures:
    """Leaks over some branches."""

    commands: int
    """Commands of the branches that could be judged, at least 1."""
    leaked: int
    share: float
    """`leaked` / `commands`."""
    by_kind: Mapping[str, int]
    """Kind -> leaked commands, kinds in alphabetical order."""
    examples: tuple[LeakExample, ...]
    """The first ones."""


Rule = Callable[[Branch], Sequence[Leak] | None]
"""Leaks of one branch, at most one a command; None: its texts cannot be judged."""


def _alfworld(branch: Branch) -> Sequence[Leak] | None:
    from oracles.leak_alfworld import leaks

    return leaks(branch)


def _webshop(branch: Branch) -> Sequence[Leak] | None:
    from oracles.leak_webshop import leaks

    return leaks(branch)


_RULES: dict[str, Rule] = {"SeroALFWorld-v0": _alfworld, "SeroWebShop-v0": _webshop}


def register_audit(env_id: str, rule: Rule) -> None:
    """Give an environment of another package a rule, for this process.

    Raises:
        ValueError: the environment has another rule already.
    """
    if _RULES.setdefault(env_id, rule) is not rule:
        raise ValueError(f"{env_id!r} has a leak rule already; register it under another id.")


def audit(branches: Sequence[Branch], env_id: str) -> LeakFigures | None:
    """Count the leaks in valid branches; others give no supervision.

    None: the environment has no rule, or no valid branch has a command that can be judged.

    Args:
        branches: of one environment.
        env_id: as registered with gymnasium.
    """
    rule = _RULES.get(env_id)
    if rule is None:
        return None
    commands = 0
    kinds: Counter[str] = Counter()
    examples: list[LeakExample] = []
    for branch in branches:
        found = rule(branch) if branch.valid else None
        if found is None:
            continue
        commands += len(branch.steps)
        kinds.update(leak.kind for leak in found)
        for leak in found[: EXAMPLES - len(examples)]:
            command = branch.steps[leak.k].action
            examples.append(LeakExample(branch.root.task_id, leak.k, command, leak.why))
    if not commands:
        return None
    leaked = kinds.total()
    by_kind = dict(sorted(kinds.items()))
    return LeakFigures(commands, leaked, leaked / commands, by_kind, tuple(examples))
