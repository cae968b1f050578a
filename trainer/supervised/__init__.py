"""Learning from demonstrations before reinforcement learning."""
