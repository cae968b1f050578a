"""Learning from a teacher token by token."""
