"""Losses as pure functions of tensors: no networks, no state, no files."""
