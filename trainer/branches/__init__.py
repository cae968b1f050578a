"""SERO's branches: which roots, what the oracle plays from there, what the policy learns of it."""
