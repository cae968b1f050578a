"""The original engine beside ours: driven, compared step for step, replayed from recordings."""
