"""Rulka's PPO beside stable-baselines3's and Sample Factory's: see `benchmarks.ppo_peers.__main__`."""
