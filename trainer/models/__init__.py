"""Small models built on the spot, for runs without a download."""
