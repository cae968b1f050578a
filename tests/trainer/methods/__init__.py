"""Auxiliary objectives in a run."""
