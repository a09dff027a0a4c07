"""Gymnasium environments and batches of cars, in the simulator or the game; rewards as pure functions."""
