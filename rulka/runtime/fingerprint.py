"""Which code decides how the training of one algorithm goes; part of the fingerprint that names its folder.

The rule: every file of code among the `deps` of stage `train` in `dvc.yaml`, less those that the entries of other
algorithms list as their own. A file that nobody lists counts for all algorithms: that costs a training at worst, and a
file listed wrongly would let old work pass for new.
"""

from __future__ import annotations

from pathlib import Path

from rulka.agents.algorithms import ALGORITHMS
from rulka.graph import code_files, hash_code
from rulka.params import Algorithm


def code_of(algorithm: Algorithm) -> list[Path]:
    """Returns the files of code that decide how the training of an algorithm goes."""
    others = [pattern for name, entry in ALGORITHMS.items() if name != algorithm for pattern in entry.own_code]
    return [file for file in code_files("train") if not any(file.match(pattern) for pattern in others)]


def code_hash(algorithm: Algorithm) -> str:
    """Returns the SHA-256 of the code that decides how the training of an algorithm goes."""
    return hash_code(code_of(algorithm))
