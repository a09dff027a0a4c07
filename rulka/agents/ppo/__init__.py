"""Proximal policy optimisation: from what it learns (`rollout`), and how (`learner`)."""
