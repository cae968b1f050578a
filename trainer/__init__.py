"""Training of language-model agents: objectives, rollouts, the loop, and the `sero` command.

Importing this package loads nothing heavy; the parts that need torch import it themselves.
"""
