"""Typed access to `params.yaml`: all sections, checks across sections, reading and editing the file.

The classes of sections are next to the code that uses them, in files named `params.py`, with a default and a
description for every key. A missing key has its default; an unknown key is an error.
"""

from __future__ import annotations

from rulka.params.of_stages import params_of_stage
from rulka.params.reader import (
    PARAMS_FILE,
    checked_params,
    packaged_file,
    read_params,
    read_sections,
    reference_params,
    resolved,
    sections_of,
    with_given,
)
from rulka.params.sections import Params, keys_of
