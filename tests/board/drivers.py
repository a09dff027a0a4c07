"""Drivers for the tests of the board."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import FLOATS, NUM_FLOATS


def leftward(seen: dict[str, NDArray], k: int = 2) -> NDArray[np.float32]:
    """Returns how far a waypoint ahead lies to the left, in metres."""
    floats = seen["floats"]
    return floats[:, FLOATS["waypoints"].start + floats.shape[1] - NUM_FLOATS + 3 * k]


def follow(seen: dict[str, NDArray]) -> NDArray[np.int64]:
    """Full throttle toward a waypoint, by keys."""
    return np.select([leftward(seen) > 1.0, leftward(seen) < -1.0], [1, 2], 0)


def glide(seen: dict[str, NDArray]) -> NDArray[np.float32]:
    """The same with a stick and pedals that rest anywhere."""
    steer = np.clip(-leftward(seen) / 3.0, -1.0, 1.0)
    return np.stack([steer, np.full(len(steer), 0.93), np.full(len(steer), 0.01)], axis=1).astype(np.float32)


def chunks(seen: dict[str, NDArray]) -> NDArray[np.int64]:
    """Five actions of 10 ms in a decision."""
    return np.stack([follow(seen), *4 * [np.zeros(len(seen["floats"]), np.int64)]], axis=1)


follow.environment = {"observation": {"withheld": ["image"]}}
glide.environment = {"observation": {"withheld": ["image"]}, "continuous": True}
chunks.environment = {"observation": {"withheld": ["image"]}, "actions_per_decision": 5}


def uneven(seen: dict[str, NDArray]) -> NDArray[np.int64]:
    """Two actions, of 20 and 30 ms."""
    return chunks(seen)[:, :2]


uneven.environment = chunks.environment | {"actions_per_decision": [0, 20]}


class Model:
    """What a model of stable-baselines3 looks like."""

    environment = follow.environment

    def predict(self, observation: dict[str, NDArray], deterministic: bool = False) -> tuple[NDArray, Any]:
        """Returns actions and the state of a recurrent policy."""
        assert deterministic
        return follow(observation), None


model = Model()


def blind(seen: dict[str, NDArray]) -> NDArray[np.int64]:
    """Sees only what its class may see."""
    waypoints = FLOATS["waypoints"]
    assert not seen["floats"][:, waypoints].any()
    assert seen["floats"][:, FLOATS["gear"]].all()
    return np.zeros(len(seen["floats"]), np.int64)


blind.environment = {"observation": {"withheld": ["waypoints", "margin"], "height": 34, "width": 34}}
