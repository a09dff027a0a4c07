"""Learning from recorded frames, before reinforcement learning: objectives, augmentation and the training loop."""
