"""Proximal policy optimisation: how it acts (`actor`), from what it learns (`rollout`), and how (`learner`)."""
