"""A generic planner: any game whose rules are PDDL, by Fast Downward as a program of its own.

`oracles.pddl.oracle.PDDLOracle` is the oracle; `oracles.pddl.fast_downward.solve` plans for any
domain and problem text.
"""
