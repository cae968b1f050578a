"""Making, playing and closing envs over and over leaves memory, files and processes as they were.

Measured in a process of its own, after a warm-up in which every game was compiled once.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import full_count, run_python

BOUND = 3 << 20
"""Bytes by which the resident memory may differ after all cycles; a leaked env is 10 kB or more,
so 300 leaked ones would show."""

MEASURE = """
import gc, json, os, sys, tempfile
import gymnasium, agent_envs

def measure():
    gc.collect()
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    return {"rss": rss, "fds": len(os.listdir("/proc/self/fd")),
            "temporary": sorted(os.listdir(tempfile.gettempdir())), "children": len(children)}

def main():
    warm_up, cycles = map(int, sys.argv[1:3])
    for number in range(warm_up):
        cycle(number)
    before = measure()
    for number in range(cycles):
        cycle(number)
    print(json.dumps([before, measure()]))
"""
ONE = """
DATA = "generated:small?seed=5&train=12&valid_seen=0&valid_unseen=0"
def cycle(number):
    env = gymnasium.make("SeroALFWorld-v0", data=DATA)
    _, info = env.reset(seed=number)
    for step in range(8):
        actions = info["admissible_actions"]
        *_, info = env.step(actions[(number + step) % len(actions)])
    agent_envs.restore(env, agent_envs.snapshot(env))
    env.close()
"""
SERIAL = """
DATA = "generated:small?seed=5&train=12&valid_seen=0&valid_unseen=0"
def cycle(number):
    vec = agent_envs.make_vec("SeroALFWorld-v0", 8, data=DATA)
    vec.reset(seed=number)
    for step in range(3):
        vec.step(["look"] * 8)
    vec.close()
"""
POOL = """
DATA = "generated:small?seed=5&train=12&valid_seen=0&valid_unseen=0"
def cycle(number):
    vec = agent_envs.make_vec("SeroALFWorld-v0", 4, num_workers=2, data=DATA)
    vec.reset(seed=number)
    vec.step(["look"] * 4)
    vec.close()
"""
ORIGINAL = """
DATA = "generated:small?seed=5&train=2&valid_seen=0&valid_unseen=0"
def cycle(number):
    env = gymnasium.make("SeroALFWorld-v0", data=DATA, engine="textworld")
    env.reset(seed=number)
    env.step("look")
    env.close()
"""


def grown(cycle: str, warm_up: int, cycles: int, folder: Path) -> tuple[dict, dict]:
    """What was measured before and after the cycles, with `folder` for temporary files."""
    code = MEASURE + cycle + "if __name__ == '__main__':\n    main()\n"
    out = run_python(
        code, str(warm_up), str(cycles), env={"TMPDIR": str(folder)}, timeout=60 + 30 * cycles
    )
    before, after = json.loads(out.splitlines()[-1])
    return before, after


@pytest.mark.parametrize(
    ("cycle", "cycles"), [(ONE, full_count(300, 1000)), (SERIAL, full_count(100, 1000))]
)
def test_o8_cycles_leave_nothing_behind(cycle, cycles, tmp_path):
    before, after = grown(cycle, 60, cycles, tmp_path)
    assert after["rss"] - before["rss"] < BOUND
    for key in ("fds", "temporary", "children"):
        assert after[key] == before[key], key


def test_o8_cycles_of_a_pool_leave_nothing_behind(tmp_path):
    before, after = grown(POOL, 2, full_count(4, 30), tmp_path)
    assert after["rss"] - before["rss"] < BOUND
    for key in ("fds", "temporary", "children"):
        assert after[key] == before[key], key


@pytest.mark.usefixtures("reference")
def test_o8_cycles_of_the_original_engine_leave_nothing_behind(tmp_path):
    before, after = grown(ORIGINAL, 4, full_count(6, 20), tmp_path)
    assert after["rss"] - before["rss"] < BOUND
    for key in ("fds", "temporary", "children"):
        assert after[key] == before[key], key


def test_o8_a_leak_would_be_seen(tmp_path):
    leaky = (
        ONE
        + """
kept = []
clean = cycle
def cycle(number):
    clean(number)
    kept.append((open(os.devnull), bytearray(20_000)))
    tempfile.mkstemp()
"""
    )
    before, after = grown(leaky, 5, 300, tmp_path)
    assert after["rss"] - before["rss"] > BOUND
    assert after["fds"] >= before["fds"] + 300
    assert len(after["temporary"]) == len(before["temporary"]) + 300
