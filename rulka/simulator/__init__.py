"""The embedded racing simulator: physics, built-in driver, rendering. Numba kernels, no torch."""
