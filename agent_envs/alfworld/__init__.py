"""The household text game of ALFWorld: native engine, games, environment."""
