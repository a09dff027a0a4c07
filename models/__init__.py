"""Torch networks and their configurations: no losses, no file access, no imports from other packages of Rulka."""
