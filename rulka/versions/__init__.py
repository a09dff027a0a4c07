"""Versions of data and results: the remote, recordings, old revisions, and what may be deleted of DVC's cache."""
