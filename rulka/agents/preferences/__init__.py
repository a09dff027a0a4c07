"""GRPO and DPO: learning from comparisons of races."""
