"""Conformance: does an environment keep the promises of docs/environments.md?

``check_snapshot_env(env)`` checks all of them, ``check_...(env)`` one each. They work on what
`gymnasium.make` returns and on any `agent_envs.TextEnv`, and play the env: the episode that runs
in it is lost. See docs/conformance.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rapidfuzz import process

from agent_envs.errors import InvalidOption
from agent_envs.testing.info_promises import (
    check_info_complete,
    check_info_immutable,
    check_nothing_privileged,
    check_privileged_view,
)
from agent_envs.testing.isolation_promises import (
    check_close,
    check_deepcopy,
    check_envs_independent,
    check_fork_independent,
    check_global_rng,
)
from agent_envs.testing.report import CHECKS, Check, ConformanceError, Failure, Report
from agent_envs.testing.reset_promises import (
    check_reset_needed,
    check_schedule,
    check_seeded_reset,
    check_seeds_differ,
    check_spaces,
    check_task_on_request,
)
from agent_envs.testing.snapshot_promises import (
    check_asking_changes_nothing,
    check_budget_restored,
    check_fresh_restore,
    check_hostile_snapshots,
    check_next_episode,
    check_snapshot_bytes,
    check_snapshot_equal,
    check_snapshot_replay,
)
from agent_envs.testing.step_promises import (
    check_admissible_accepted,
    check_invalid_is_noop,
    check_step_after_end,
    check_step_budget,
    check_step_results,
    check_success,
)
from agent_envs.testing.subject import Env

__all__ = [
    "PROMISES",
    "ConformanceError",
    "Failure",
    "Report",
    "check_admissible_accepted",
    "check_asking_changes_nothing",
    "check_budget_restored",
    "check_close",
    "check_deepcopy",
    "check_envs_independent",
    "check_fork_independent",
    "check_fresh_restore",
    "check_global_rng",
    "check_hostile_snapshots",
    "check_info_complete",
    "check_info_immutable",
    "check_invalid_is_noop",
    "check_next_episode",
    "check_nothing_privileged",
    "check_privileged_view",
    "check_reset_needed",
    "check_schedule",
    "check_seeded_reset",
    "check_seeds_differ",
    "check_snapshot_bytes",
    "check_snapshot_env",
    "check_snapshot_equal",
    "check_snapshot_replay",
    "check_spaces",
    "check_step_after_end",
    "check_step_budget",
    "check_step_results",
    "check_success",
    "check_task_on_request",
]

PROMISES: dict[str, Check] = {
    name: CHECKS[name]
    for module in ("reset", "step", "info", "snapshot", "isolation")
    for name in CHECKS
    if CHECKS[name].__module__ == f"{__name__}.{module}_promises"
}
"""Every check by the name of its promise, in the order in which they run."""


def check_snapshot_env(
    env: Env,
    *,
    make: Callable[[], Env] | None = None,
    seed: int = 0,
    walks: int = 3,
    steps: int = 12,
    plan: Callable[[Env], Sequence[str]] | None = None,
    public_keys: Collection[str] = (),
    skip: Collection[str] = (),
) -> Report:
    """Check every promise; all failures come in one error.

    Args:
        env: the env. It is reset and stepped, and not closed.
        make: builds another env like `env`. Without it ``gymnasium.make(env.spec)`` does; an env
            with neither is not checked for what needs a second one.
        seed: seed of all episodes and walks: the same seed checks the same.
        walks: random walks per promise.
        steps: steps per walk.
        plan: ``plan(env)`` gives commands that win from the start of the running episode; checks
            of winning use it.
        public_keys: keys of `info` beyond the documented ones that players may see.
        skip: names of promises (keys of `PROMISES`) to leave out.

    Raises:
        ConformanceError: broken promises, each with what was found, what was expected and the
            likely cause.
        InvalidOption: an argument that makes no sense.
    """
    unknown = sorted(set(skip) - PROMISES.keys())
    if unknown:
        near = process.extractOne(unknown[0], list(PROMISES))
        raise InvalidOption(f"There is no promise {unknown[0]!r}; did you mean {near[0]!r}?")
    failures: list[Failure] = []
    passed: list[str] = []
    unchecked: list[tuple[str, str]] = []
    for name, check in PROMISES.items():
        if name in skip:
            unchecked.append((name, "left out"))
            continue
        try:
            reason = check(
                env,
                make=make,
                seed=seed,
                walks=walks,
                steps=steps,
                plan=plan,
                public_keys=public_keys,
            )
        except ConformanceError as error:
            failures += error.failures
        else:
            if reason is None:
                passed.append(name)
            else:
                unchecked.append((name, reason))
    if failures:
        raise ConformanceError(tuple(failures))
    return Report(str(env), seed, tuple(passed), tuple(unchecked))
