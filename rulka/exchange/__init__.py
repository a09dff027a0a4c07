"""Fetching maps and recordings from an exchange site. No torch."""

from rulka.exchange.client import BadAnswerError, Client, ExchangeError, NotThereError, Pace, UnavailableError
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
