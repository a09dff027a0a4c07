"""Training on machines that are not at hand, simulated with measured costs: `python -m benchmarks.scale`."""
