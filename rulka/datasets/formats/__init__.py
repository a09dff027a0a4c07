"""Files of race tables and frame shards: what all stages read."""
