"""Which code decides how the training of one algorithm goes; part of the fingerprint that names its folder.

The rule: every file of code among the `deps` of stage `train` in `dvc.yaml`, less those that are listed here. A file
that nobody lists counts for all algorithms: that costs a training at worst, and a file listed wrongly would let old
work pass for new.
"""

from __future__ import annotations

from pathlib import Path

from rulka.graph import code_files, hash_code
from rulka.params import Algorithm

ONE_ALGORITHM: dict[Algorithm, tuple[str, ...]] = {
    "ppo": (
        "rulka/agents/ppo*.py",
        "rulka/agents/rollouts.py",
        "rulka/losses/gae.py",
        "rulka/losses/least_squares.py",
        "rulka/losses/ppo.py",
    ),
    "iqn": (
        "models/iqn*.py",
        "rulka/agents/iqn*.py",
        "rulka/buffers/held_out.py",
        "rulka/buffers/mini_race.py",
        "rulka/buffers/prioritised.py",
        "rulka/buffers/sampler.py",
        "rulka/buffers/sum_tree.py",
        "rulka/losses/munchausen.py",
        "rulka/losses/quantile.py",
    ),
}
"""Files that nothing but this algorithm's training runs, as patterns of paths."""


def code_of(algorithm: Algorithm) -> list[Path]:
    """Returns the files of code that decide how the training of an algorithm goes."""
    others = [pattern for name, patterns in ONE_ALGORITHM.items() if name != algorithm for pattern in patterns]
    return [file for file in code_files("train") if not any(file.match(pattern) for pattern in others)]


def code_hash(algorithm: Algorithm) -> str:
    """Returns the SHA-256 of the code that decides how the training of an algorithm goes."""
    return hash_code(code_of(algorithm))
