"""Generated shops: products, attributes and instructions from a seed, in the original's form."""
