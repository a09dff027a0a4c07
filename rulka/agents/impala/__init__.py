"""IMPALA: what is done about experience of an older policy (`correction`), and how it learns (`learner`)."""
