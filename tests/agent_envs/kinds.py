"""The envs and wrapper stacks that the tests of the core run over, and how they play."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import pytest
from gymnasium import wrappers

import agent_envs
from tests.agent_envs import lamp_env

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lamp": (lamp_env.ENV_ID, {}),
    "alfworld": ("SeroALFWorld-v0", {"data": "generated:small?seed=5&train=8"}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def _shout(observation: str) -> str:
    return observation.upper()


STACKS: dict[str, Callable[[gymnasium.Env], gymnasium.Env]] = {
    "made": lambda env: env,
    "bare": lambda env: env.unwrapped,
    "limit": lambda env: wrappers.TimeLimit(env, 7),
    "statistics": lambda env: wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(env, 9), 4),
    "shout": lambda env: wrappers.TransformObservation(env, _shout, None),
    "checked": lambda env: wrappers.PassiveEnvChecker(wrappers.OrderEnforcing(env)),
    "sticky": lambda env: wrappers.StickyAction(env, 0.4, (1, 3)),
    "stacked": lambda env: wrappers.FrameStackObservation(env, 3),
    "timed": lambda env: wrappers.TimeAwareObservation(
        wrappers.TimeLimit(env, 11), flatten=False, normalize_time=False
    ),
    "rewarded": lambda env: wrappers.ClipReward(
        wrappers.NormalizeReward(wrappers.TransformReward(env, lambda r: 3 * r)), -1, 1
    ),
    "repeated": lambda env: wrappers.TimeLimit(wrappers.RepeatAction(env, 2), 12),
    "autoreset": lambda env: wrappers.Autoreset(wrappers.TimeLimit(env, 5)),
    "deep": lambda env: wrappers.RecordEpisodeStatistics(
        wrappers.TransformObservation(
            wrappers.TimeLimit(wrappers.StickyAction(env, 0.2), 15), _shout, None
        )
    ),
}


def make(kind: str, stack: str = "made", **kwargs: Any) -> gymnasium.Env:
    """An env of `kind` under the wrappers `stack`."""
    env_id, defaults = KINDS[kind]
    return STACKS[stack](gymnasium.make(env_id, **{**defaults, **kwargs}))


def command(info: dict[str, Any], number: int) -> Any:
    """An action that depends on the state and `number` only; some are nonsense."""
    nonsense = ("", "xyzzy", "go to nowhere 1", "look\nlook", "é™😀\x00", "a" * 5000, None, 7)
    if number % 7 == 0:
        return nonsense[number // 7 % len(nonsense)]
    admissible = info["admissible_actions"]
    return admissible[number % len(admissible)]


def comparable(info: dict[str, Any]) -> dict[str, Any]:
    """`info` without the one wall-clock time that Gymnasium puts there."""
    if "episode" in info:
        info = {**info, "episode": {k: v for k, v in info["episode"].items() if k != "t"}}
    return info


def play(env: gymnasium.Env, info: dict[str, Any], numbers: Iterable[int]) -> list[Any]:
    """Everything that `env` answers to `numbers`; a finished episode is followed by `reset()`."""
    trace: list[Any] = []
    autoreset = isinstance(env, wrappers.Autoreset)
    over = agent_envs.remaining_steps(env) == 0
    for number in numbers:
        if over and not autoreset:
            observation, info = env.reset()
            over = False
            trace.append((observation, comparable(info)))
        else:
            observation, reward, terminated, truncated, info = env.step(command(info, number))
            over = terminated or truncated
            trace.append((observation, reward, terminated, truncated, comparable(info)))
    return trace


def main() -> None:
    """Resume snapshots given as JSON on standard input and print what is played, as reprs."""
    for case in json.load(sys.stdin):
        env = make(case["kind"], case["stack"])
        snap = agent_envs.Snapshot.from_bytes(bytes.fromhex(case["snapshot"]))
        observation, info = agent_envs.restore(env, snap)
        again = agent_envs.snapshot(env) == snap
        print(json.dumps(repr((again, observation, play(env, info, case["numbers"])))))


if __name__ == "__main__":
    main()
