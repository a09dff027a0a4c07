"""Reference laps: near time-optimal races found by search on the simulator, and the medals that derive from them."""
