"""The Ray cluster, where this machine or the parameters name one: the package, and whether somebody listens."""

from __future__ import annotations

from rulka.cluster import chosen_address, find_cluster
from rulka.doctor.finding import Finding, State
from rulka.errors import UserError
from rulka.params import read_params


def cluster() -> list[Finding]:
    """Looks at what training on a cluster needs, without joining it; says nothing where there is no talk of one."""
    is_asked_for, address = _is_asked_for(), chosen_address()
    if address is None and not is_asked_for:
        return []
    try:
        address = find_cluster()
    except UserError as error:
        state = State.WRONG if is_asked_for else State.NOTE
        return [Finding("cluster", state, str(error), error.hint)]
    return [Finding("cluster", State.OK, f"somebody listens at {address}; `ray status` says what it has")]


def _is_asked_for() -> bool:
    try:
        return read_params().train.cluster == "ray"
    except UserError:  # the look at params.yaml says what is wrong with it
        return False
