"""A run on disk: its folder, checkpoints, resuming, and what it was made with."""
