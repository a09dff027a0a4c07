"""Address of a game and settings for connecting to it, as one picklable value."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rulka.game.client import GameClient
from rulka.game.errors import GameClosedError, GameError, GameTimeoutError
from rulka.game.protocol import BASE_PORT
from rulka.game.session import Decision, GameSession, SessionSettings

RETRY_S = 0.1


@dataclass(frozen=True)
class GameLink:
    """The link to one game, started by Rulka or by a person.

    Attributes:
        host: host of the game.
        port: port on which its plugin listens.
        speed: factor of the race clock while driving.
        timeout_s: timeout for a message.
        patience_s: how long to retry a connection, also after losing one.
        map_name: map to open if the game is in its menus; empty leaves that to a person.
        reports: folder for hang reports to the game's supervisor; None without a supervisor.
    """

    host: str = "127.0.0.1"
    port: int = BASE_PORT
    speed: float = 10.0
    timeout_s: float = 20.0
    patience_s: float = 10.0
    map_name: str = ""
    reports: Path | None = None

    def instance(self, index: int) -> GameLink:
        """Returns the link to game instance `index`, whose port is higher by `index`."""
        return replace(self, port=self.port + index)

    def open(self, period_ms: int, width: int, height: int) -> GameSession:
        """Connects to the game.

        Args:
            period_ms: length of a decision.
            width: width of the frames, in pixels.
            height: height of the frames, in pixels.

        Raises:
            GameError: if no game listens, or the listener speaks another protocol.
        """
        settings = SessionSettings(period_ms, width, height, self.speed, map_name=self.map_name)
        try:
            return GameSession(GameClient(self.host, self.port, self.timeout_s, self.patience_s), settings)
        except GameError as error:
            self.report(error)
            raise

    def reconnect_and_begin(self, session: GameSession) -> Decision:
        """Reconnects a session and begins a race, with retries for up to `patience_s`.

        A game that is shutting down may accept a connection and drop it, and a new one may end again; hence the
        retries.

        Raises:
            GameError: if the game does not come back.
        """
        give_up_s = time.monotonic() + self.patience_s
        while True:
            try:
                session.recover()
                return session.begin()
            except GameClosedError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(RETRY_S)

    def close_quietly(self, session: GameSession) -> None:
        """Closes a session; ignores a game that is already gone."""
        with suppress(GameError):
            session.close()

    def report(self, error: GameError) -> None:
        """Reports a hanging game (timeout) to its supervisor, which detects other failures on its own."""
        if self.reports is not None and isinstance(error, GameTimeoutError):
            hang_report(self.reports, self.port).touch()


def hang_report(folder: Path, port: int) -> Path:
    """Returns the path of the marker file for a hanging game at a port."""
    return folder / f"{port}.hung"
