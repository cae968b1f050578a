"""Skills as what a teacher knows more."""
