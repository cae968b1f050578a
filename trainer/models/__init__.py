"""Models: log-probs of tokens, packing, adapters, the critic, tiny policies built on the spot."""
