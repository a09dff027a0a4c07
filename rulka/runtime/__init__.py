"""The multi-process runtime: collectors, learner loop, shared memory, weights, supervision, live checkpoints.

Start reading at `connect`, which wires all parts together.
"""
