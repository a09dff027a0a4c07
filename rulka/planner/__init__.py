"""The planner: drives any track at sight, advises from any state, and finds what a lap loses."""
