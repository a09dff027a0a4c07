"""Gymnasium environments over the simulator, one car or a batch; rewards as pure functions."""
