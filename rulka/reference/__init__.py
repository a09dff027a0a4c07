"""Reference laps: near time-optimal races found by search in the simulator, and medals derived from them."""
