"""Evaluation of trained agents: greedy races from fixed seeds, and their statistics."""
