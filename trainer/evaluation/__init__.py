"""Parts of evaluation: what is measured, how results agree, and how they are shown.

`trainer.evaluation.evaluate` puts them together. Nothing here needs torch or `oracles`.
"""
