"""Image encoders and their factory `build_encoder`; pretraining, cloning, IQN and PPO share one encoder.

To add one: a configuration in `config.py` and in its `EncoderConfig`; a subclass of `base.Encoder` in its own file; a
case in `build.py`. Parameters, artifacts and all networks then support it.
"""
