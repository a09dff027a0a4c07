"""Learning from recorded frames, before any reinforcement: objectives, augmentation, the training loop, its plots."""
