"""Advantages weighed by a teacher that was told more."""
