"""Torch networks, and what encoders can be told: no loss, no files, nothing of ours imported from elsewhere."""
