"""IQN with mini-races."""
