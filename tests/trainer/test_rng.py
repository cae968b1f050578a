from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.rng import stream, stream_key

_KEYS = st.tuples(
    st.integers(-(2**40), 2**40),
    st.integers(0, 10**6),
    st.one_of(st.integers(0, 10**6), st.text(max_size=8)),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.sampled_from(["generate", "root", "branch", "evaluate", 'a","b']),
)


@given(_KEYS, _KEYS)
def test_different_keys_give_different_streams(left, right):
    # 1 == True == 1.0 in Python, hence the types.
    same = left == right and type(left[2]) is type(right[2])
    assert (stream_key(*left) == stream_key(*right)) == same
    assert (stream(*left).random(4).tolist() == stream(*right).random(4).tolist()) == same


def test_seed_zero_and_each_argument_count():
    base = {"seed": 0, "iteration": 0, "task": 0, "rollout": 0, "turn": 0, "purpose": "generate"}
    draws = {stream(**base).random()}
    for name in ("seed", "iteration", "task", "rollout", "turn"):
        draws.add(stream(**(base | {name: 1})).random())
    draws.add(stream(**(base | {"purpose": "root"})).random())
    draws.add(stream(**(base | {"task": "0"})).random())
    assert len(draws) == 8


def test_same_stream_in_another_process():
    code = (
        "from trainer.rng import stream; print(repr(stream(3, 1, 'täsk', 2, 4, 'root').random()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) == stream(3, 1, "täsk", 2, 4, "root").random()


def test_draws_are_uniform_over_keys():
    first = np.array([stream(0, rollout=i).random() for i in range(2000)])
    # 10 bins of 200 expected; the bound is 5 standard deviations of a bin.
    counts = np.histogram(first, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200 * 0.9)


def test_global_generators_stay_where_they_were():
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    stream(1, 2, "x").random()
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert before == after
