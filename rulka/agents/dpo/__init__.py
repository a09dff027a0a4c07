"""Direct preference optimisation: how it learns from pairs of races (`learner`), and what waits beside (`passed`)."""
