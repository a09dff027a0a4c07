"""Parallel Q-learning."""
