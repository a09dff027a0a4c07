"""Training of agents: the interface between environments and the runtime (`run`), and its implementations.

Each builds a `rulka.runtime.specs.RunSpec`, lets `rulka.runtime.connect` run it, and turns the outcome into an agent.
Cars, tracks and recordings are known here, not in the runtime.
"""
