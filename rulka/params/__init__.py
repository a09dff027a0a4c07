"""All of `params.yaml`, typed: every section, what several of them make impossible, reading and changing the file.

The classes of sections lie beside the code that reads them, in files called `params.py`: a default and a meaning for
every key. A key that the file leaves out has its default; one that is not known is an error.
"""

from __future__ import annotations

from rulka.params.problems import problems_of
from rulka.params.reader import (
    PARAMS_FILE,
    ParamsError,
    checked_params,
    read_params,
    read_sections,
    reference_params,
    resolved,
    sections_of,
    that_comes_with_the_package,
    with_given,
)
from rulka.params.sections import Params, keys_of
