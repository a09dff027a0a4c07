"""Encoders of images, and `build_encoder`, the one way to make them; pretraining, cloning, IQN and PPO share one.

To add one: a configuration in `config.py`, which joins `EncoderConfig` there; a subclass of `base.Encoder` in a file of
its own; a line in `build.py`. Parameters, artifacts and every network know it from then on.
"""
