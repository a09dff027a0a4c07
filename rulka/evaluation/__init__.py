"""What came of the training: greedy races from fixed seeds, statistics, plots, video and one report."""
