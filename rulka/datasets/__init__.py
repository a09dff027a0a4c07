"""Reads and writes the datasets that stages pass to each other: race tables and frame shards."""
