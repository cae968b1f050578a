"""How the cases of the numeric vectors are evaluated."""
