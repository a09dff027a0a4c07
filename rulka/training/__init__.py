"""Trainings: the seam between environments and the runtime (`run`), and what is trained on either side of it.

Each says what a run is made of, as a `rulka.runtime.specs.RunSpec`, has `rulka.runtime.connect` do it, and makes an
agent of its outcome. What cars, tracks and recordings are is known here, and not in the runtime.
"""
