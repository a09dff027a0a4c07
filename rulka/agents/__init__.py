"""Agents: network, loss and optimizer of one algorithm; no processes, no files."""
