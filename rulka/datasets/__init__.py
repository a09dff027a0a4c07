"""Race tables and frame shards: what the stages hand to each other, written and read in one place."""
