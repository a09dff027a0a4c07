"""Implicit quantile networks: how it acts (`actor`), what it learns (`loss`), from what (`replay`), how (`learner`)."""
