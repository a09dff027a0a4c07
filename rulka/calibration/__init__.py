"""Fits the simulator's physics to real recordings and reports the errors."""
