"""Experiments and populations: variants of the parameters run through the project's stages, and their results."""
