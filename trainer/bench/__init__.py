"""Measurements of speed and cost beside the originals, without torch."""
