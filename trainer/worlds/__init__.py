"""Environments, tasks and oracles of a run, and what names on a command line stand for."""
