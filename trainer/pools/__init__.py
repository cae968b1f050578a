"""Environments of a run behind one protocol: here, in worker processes, or in Ray actors.

Promise (tests/trainer/pools/): the same commands give the same episodes, bit for bit, wherever the
environments are.
"""
