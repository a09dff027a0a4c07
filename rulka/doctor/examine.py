"""What can be wrong with the machine and the folder that a run needs, and what to do about it: `rulka doctor`."""

from __future__ import annotations

from collections.abc import Mapping

from rulka.doctor import game, machine, project, storage, versioning
from rulka.doctor.cluster import cluster
from rulka.doctor.finding import Finding, Look, looked_at
from rulka.doctor.ports import ports
from rulka.doctor.records import records

LOOKS: Mapping[str, Look] = {
    "python": machine.python,
    "packages": machine.packages,
    "compute": machine.compute,
    "device": machine.device,
    "kernels": machine.kernels,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "params.yaml": project.parameters,
    "folder": project.folder,
    "disk": storage.disk,
    "git": versioning.git,
    "dvc": versioning.dvc,
    "ports": ports,
    "prefect records": records,
    "cluster": cluster,
    "game": game.game,
}


def examine(further: Mapping[str, Look]) -> list[Finding]:
    """Looks at everything; no look that fails ends the others.

    Args:
        further: looks by name that this room cannot take, as those at Prefect.
    """
    return [finding for name, look in {**LOOKS, **further}.items() for finding in looked_at(name, look)]
