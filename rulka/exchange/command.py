"""The command `rulka fetch`: whether what it is asked for makes sense, and what it says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rulka.errors import UserError
from rulka.exchange.client import Client, Pace
from rulka.exchange.fetch import REJECTED, FetchReport, Wanted, fetch
from rulka.exchange.listing import MapEntry, find_maps
from rulka.exchange.manifest import FILE_NAME

DEFAULT_URL, URL_VARIABLE = "https://tmnf.exchange", "RULKA_EXCHANGE_URL"
MAX_REQUESTS_PER_S = 10.0
Say = Callable[[str], None]


def check_wanted(wanted: Wanted) -> None:
    """Checks what to fetch.

    Raises:
        UserError: if that is the whole exchange, or nothing.
    """
    query = wanted.query
    if not query.is_exact and query.max_maps is None:
        message = "neither the maps nor how many of them are named"
        raise UserError(message, hint="Name maps with --map-id or --map-uid, or say --maps 10.")
    if wanted.num_replays < 0 or (query.max_maps is not None and query.max_maps < 1):
        message = "the numbers of maps and recordings must not be negative, and at least one map"
        raise UserError(message)
    least_ms, most_ms = query.min_length_ms, query.max_length_ms
    if any(length_ms is not None and length_ms < 0 for length_ms in (least_ms, most_ms)):
        message = "author times begin at 0 s"
        raise UserError(message, hint="Say --min-length-s and --max-length-s in seconds from 0.")
    if least_ms is not None and most_ms is not None and least_ms > most_ms:
        message = f"the least author time, {least_ms / 1000:g} s, is greater than the greatest, {most_ms / 1000:g} s"
        raise UserError(message, hint="Swap --min-length-s and --max-length-s.")
    if wanted.num_replays == 0 and not wanted.with_maps:
        message = "neither maps nor recordings are wanted"
        raise UserError(message, hint="Leave --no-with-maps out, or say how many --replays.")


def run_fetch(
    wanted: Wanted,
    out: Path,
    *,
    url: str | None,
    requests_per_s: float,
    only_list: bool,
    refresh: bool,
    say: Say,
    pace: Pace | None = None,
) -> FetchReport | list[MapEntry]:
    """Fetches, or lists, and says what happens line by line.

    Args:
        wanted: what to fetch.
        out: where to.
        url: address of the exchange; that of the environment, or the default one, when None.
        requests_per_s: how often to ask.
        only_list: show the maps and fetch nothing.
        refresh: ask again for lists that were asked for before.
        say: shows a line.
        pace: how to wait, instead of what `requests_per_s` says.

    Returns:
        What became of everything; the maps where it only listed them.

    Raises:
        UserError: if that makes no sense, or the exchange cannot be used.
    """
    check_wanted(wanted)
    if not 0 < requests_per_s <= MAX_REQUESTS_PER_S:
        message = f"{requests_per_s} requests a second; more than 0 and at most {MAX_REQUESTS_PER_S:.0f} is possible"
        raise UserError(message, hint="One a second is what the site is asked by default.")
    address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    with Client(address, pace or Pace(seconds_between=1 / requests_per_s), on_wait=say) as client:
        if only_list:
            entries = list(find_maps(client.get_json, wanted.query))
            for entry in entries:
                length = "?" if entry.length_ms is None else f"{entry.length_ms / 1000:.2f} s"
                say(f"{entry.map_id:9}  {length:>10}  {entry.uid:28}  {entry.name}  by {entry.author}")
            return entries
        say(
            f"fetching from {address} into {out}, {requests_per_s:g} requests a second; Ctrl-C stops, run again goes on"
        )
        report = fetch(client, wanted, out, is_fresh=refresh, on_file=say)
    say(
        f"{report.num_maps} maps: {report.num_new} files fetched, {report.num_known} known before,"
        f" {report.num_rejected} not taken (see {out / FILE_NAME}, {out / REJECTED})"
    )
    return report
