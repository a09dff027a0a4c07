"""A live page of a running training: its cars on the track, and its metrics."""
