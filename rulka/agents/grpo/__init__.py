"""Group relative policy optimisation: how it learns (`learner`)."""
