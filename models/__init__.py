"""Torch networks only: no loss, no files, nothing of ours imported from elsewhere."""
