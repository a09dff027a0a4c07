"""What the algorithms that learn a policy have in common: how it acts, its distributions, blocks, learner."""
