"""Processes: collectors, the learner's loop, shared memory, weights, supervision, live checkpoints.

Start reading at `connect`, where all parts are joined.
"""
