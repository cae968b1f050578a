"""The part of `sero bench oracle` that needs a trained policy.

`model` measures how far it would follow the oracle, how strong the oracle's gradient is and what
its rows cost; `sweep` trains with several weights and compares. Figures that need no model are in
`oracles.bench`.
"""
