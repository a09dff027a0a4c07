"""What can go wrong with an exchange site."""

from __future__ import annotations

from rulka.errors import UserError


class ExchangeError(UserError):
    """Base of everything that can be wrong with the exchange or its answers."""


class UnavailableError(ExchangeError):
    """The exchange does not answer, or asks to come back later than this is willing to wait."""


class NotThereError(ExchangeError):
    """The exchange does not have what was asked for, or does not give it out."""


class BadAnswerError(ExchangeError):
    """The exchange answered with something that its interface does not say."""
