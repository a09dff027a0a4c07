"""Tracks: centreline geometry, progress along it, generation and files. No torch."""
