"""Errors of the link to a game; each names the peer, what was expected and what came."""

from __future__ import annotations

from rulka.machine.errors import UserError


class GameError(UserError):
    """Base of all errors of the link."""


class GameTimeoutError(GameError):
    """The peer did not answer in time; the connection is unusable."""


class GameClosedError(GameError):
    """No game listens, or the peer closed the connection, possibly in the middle of a message."""


class GameProtocolError(GameError):
    """The peer sent something that the protocol does not allow here."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"the game broke the protocol: expected {expected}, got {got}")


class GameOrderError(GameError):
    """Our side used the link in an order that the protocol forbids; nothing was sent."""


class StateRefusedError(GameError):
    """A simulation state is truncated, corrupt or from another game; nothing was changed."""
