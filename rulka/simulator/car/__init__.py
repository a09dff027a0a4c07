"""What a car does in a tick, in parts: the ground under it, its wheels, its body, and what others read of it."""
