"""Experiments: variants of the parameters times seeds through the project's own stages, and what comes of them."""
