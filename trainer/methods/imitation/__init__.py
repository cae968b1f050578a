"""Imitation of an oracle, or of own success."""
