"""Prompting without training: the training prompt as it is, ReAct and Reflexion.

Models speak text here (`trainer.baselines.models`): a local policy through its sampler, or a
server.
Nothing imports `oracles`, but for `make_exemplars`, which writes the exemplars and is never loaded
by an evaluation.
"""
