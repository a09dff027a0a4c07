"""What came of the training: greedy races from fixed seeds, and their statistics."""
