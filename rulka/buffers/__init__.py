"""Experience storage: blocks as collectors make them, buffers, samplers, mini-races."""
