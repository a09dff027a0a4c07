"""Comparison with sb3-contrib: see `benchmarks.qrdqn.__main__`."""
