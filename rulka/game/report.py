"""What `rulka game-check` found out about a game."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rulka.game.protocol import MessageId


@dataclass
class CheckReport:
    """Findings about one game.

    Attributes:
        address: host and port.
        deviations: what breaks the protocol, one sentence each.
        notes: what is worth knowing but breaks nothing.
        messages: how many came, by id.
        num_decisions: decisions taken.
        decisions_per_s: of wall time, None where none was taken.
        version: what the handshake found, None from a plain game.
        state: the last state that was read, None where none was.
    """

    address: str
    deviations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    messages: dict[int, int] = field(default_factory=dict)
    num_decisions: int = 0
    decisions_per_s: float | None = None
    version: int | None = None
    state: dict[str, Any] | None = None

    @property
    def conforms(self) -> bool:
        """Whether no deviation was seen."""
        return not self.deviations

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {"conforms": self.conforms, "num_frames": self.messages.get(MessageId.FRAME, 0), **asdict(self)}

    def to_text(self) -> str:
        """Returns lines for people."""
        rate = f", {self.decisions_per_s:,.0f} a second" if self.decisions_per_s else ""
        lines = [
            f"{self.address}: {'conforms' if self.conforms else f'{len(self.deviations)} deviations'}",
            f"handshake  {'a plain game' if self.version is None else f'Rulka, version {self.version}'}",
            f"decisions  {self.num_decisions}{rate}",
            *(f"message {number}  {count:6,} x {MessageId(number).name}" for number, count in self.messages.items()),
            *(f"state      {name}: {value}" for name, value in (self.state or {}).items()),
            *(f"note       {note}" for note in self.notes),
            *(f"DEVIATION  {deviation}" for deviation in self.deviations),
        ]
        return "\n".join(lines)
