"""Agents by name: which there are, which is promoted, and how two of them compare."""
