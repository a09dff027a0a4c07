"""Fetching maps and recordings from an exchange site. No torch."""

from rulka.exchange.client import Client, Pace
from rulka.exchange.errors import BadAnswerError, ExchangeError, NotThereError, UnavailableError
from rulka.exchange.fetch import FetchReport, Wanted, fetch
from rulka.exchange.listing import MapEntry, MapQuery, ReplayEntry, best_replays, find_maps

__all__ = [
    "BadAnswerError",
    "Client",
    "ExchangeError",
    "FetchReport",
    "MapEntry",
    "MapQuery",
    "NotThereError",
    "Pace",
    "ReplayEntry",
    "UnavailableError",
    "Wanted",
    "best_replays",
    "fetch",
    "find_maps",
]
