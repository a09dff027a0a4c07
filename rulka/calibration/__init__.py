"""Fits the simulator's physics to real recordings, and says how well they agree."""
