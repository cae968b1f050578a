"""Generated households: valid games of all six task types, a function of a seed alone."""
