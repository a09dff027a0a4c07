"""What a learner and its hosts on other nodes say to each other; `rulka.cluster.post` carries it.

Beside `NewWeights` and `Filled` travel the bytes of a version and the arrays of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rulka.runtime.messages import BlockFilled, InferenceTimes, Stop
from rulka.schedule import Moment


@dataclass(frozen=True)
class Introduced:
    """From a host, as its first words.

    Attributes:
        code: what it runs, see `rulka.provenance.code_version`.
    """

    code: Mapping[str, str]


@dataclass(frozen=True)
class Build:
    """To a host whose code is the learner's: build the collectors.

    Attributes:
        spec: a pickled `rulka.runtime.host.HostSpec`, which other code might not understand.
    """

    spec: bytes


@dataclass(frozen=True)
class Built:
    """From a host that has its collectors.

    Attributes:
        contract: what their blocks hold and which weights they take, as `rulka.runtime.host.contract_of` says it.
        pid: of its process.
    """

    contract: Mapping[str, str]
    pid: int


@dataclass(frozen=True)
class NewWeights:
    """To a host: a version, the bytes of which come beside this.

    Attributes:
        version: its number.
        checksum: over number and bytes, see `rulka.runtime.weights.checksum`.
    """

    version: int
    checksum: int


@dataclass(frozen=True)
class Loaded:
    """From a host: its collectors have a version."""

    version: int


@dataclass(frozen=True)
class WrongWeights:
    """From a host: what came as a version is another one, or damaged; it waits for it again."""

    version: int
    reason: str


@dataclass(frozen=True)
class Allow:
    """To a host: permission for one block.

    Attributes:
        number: of the permission, rising by one for each host.
        moment: see `rulka.runtime.messages.Fill`.
        version: no older weights may drive in it.
    """

    number: int
    moment: Moment
    version: int


@dataclass(frozen=True)
class Filled:
    """From a host: the block of a permission is complete; its arrays come beside this.

    Attributes:
        number: of the permission.
        collector: who filled it, of this host's.
        facts: of the block.
    """

    number: int
    collector: int
    facts: BlockFilled


@dataclass(frozen=True)
class Alive:
    """From a host, every second or so.

    Attributes:
        activity: what it is doing.
        cpu_s: time that it and its collectors had on processors.
        num_restarts: how often it has started one of its processes again.
        inference: what its policy workers said of their time since the last time.
    """

    activity: str
    cpu_s: float
    num_restarts: int
    inference: tuple[InferenceTimes, ...] = ()


@dataclass(frozen=True)
class HostFailed:
    """From a host, as its last words, where it did not end as it should.

    Attributes:
        message: what went wrong: of an error that a person can act on, or a traceback.
        hint: what to do about it.
        is_refusal: whether it is such an error, and would come again.
    """

    message: str
    hint: str
    is_refusal: bool


@dataclass(frozen=True)
class Stopped:
    """From a host, as its last words: all that it had started is gone."""


ToHost = Build | NewWeights | Allow | Stop
FromHost = Introduced | Built | Loaded | WrongWeights | Filled | Alive | HostFailed | Stopped
