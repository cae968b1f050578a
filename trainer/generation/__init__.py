"""Samplers: token ids in; ids, log-probs and the reason to stop out."""
