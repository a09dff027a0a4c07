"""Trainings: of an agent that races (`racing`), and of one in any Gymnasium environment (`environment`).

Each says what a run is made of, as a `rulka.runtime.specs.RunSpec`, has `rulka.runtime.connect` do it, and makes an
agent of its outcome. What cars, tracks and recordings are is known here, and not in the runtime.
"""
