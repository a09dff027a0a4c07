"""Tracks of simple shape, and the reference parameters, as in the tests of the simulator."""

from tests.simulator.conftest import make_track, params, simulator_params, table

__all__ = ["make_track", "params", "simulator_params", "table"]
