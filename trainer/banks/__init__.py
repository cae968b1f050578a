"""Oracle banks in training: which a run may use, their rows, and replays of them."""
