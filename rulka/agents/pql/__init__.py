"""Parallel Q-learning: critics and a policy that maximises them, at exact ratios of each other and of the cars."""
