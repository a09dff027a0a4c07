"""What can go wrong on the link to a game; every error says with whom, what was expected and what came."""

from __future__ import annotations

from rulka.errors import UserError


class GameError(UserError):
    """Base of all errors of the link."""


class GameTimeoutError(GameError):
    """The other side did not answer in time; the connection is of no further use."""


class GameClosedError(GameError):
    """Nobody listens, or the other side closed the connection, perhaps in the middle of a message."""


class GameProtocolError(GameError):
    """The other side sent something else than the protocol allows here."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"the game broke the protocol: expected {expected}, got {got}")
        self.expected, self.got = expected, got


class GameOrderError(GameError):
    """Our own side used the link in an order that the protocol forbids; nothing was sent."""


class StateRefusedError(GameError):
    """A simulation state is cut off, garbled or of another game; nothing was changed."""
