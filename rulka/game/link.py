"""Where a game is and how to attach to it, as one picklable value."""

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
    """One game, whoever runs it.

    Attributes:
        host: where it runs.
        port: where its plugin listens.
        speed: factor of the race clock while driving.
        timeout_s: longest wait for a message.
        patience_s: how long to go on trying to connect, also after a lost connection.
        map_name: opened where the game is in its menus; empty leaves that to a person.
        reports: folder in which a game that hangs is reported to its supervisor; None where there is none.
    """

    host: str = "127.0.0.1"
    port: int = BASE_PORT
    speed: float = 10.0
    timeout_s: float = 20.0
    patience_s: float = 10.0
    map_name: str = ""
    reports: Path | None = None

    def instance(self, index: int) -> GameLink:
        """Returns the link to the game instance of a number: its port is so much higher."""
        return replace(self, port=self.port + index)

    def open(self, period_ms: int, width: int, height: int) -> GameSession:
        """Connects.

        Args:
            period_ms: length of a decision.
            width: of the frames, in pixels.
            height: of the frames.

        Raises:
            GameError: if nobody listens, or somebody who speaks another protocol.
        """
        settings = SessionSettings(period_ms, width, height, self.speed, map_name=self.map_name)
        try:
            return GameSession(GameClient(self.host, self.port, self.timeout_s, self.patience_s), settings)
        except GameError as error:
            self.report(error)
            raise

    def begin_anew(self, session: GameSession) -> Decision:
        """Connects a session anew and begins a race, waiting for the game as long as the link's patience lasts.

        A game that is just ending may still take a connection and drop it, and one that has just been started may end
        again; that is no answer yet.

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

    def let_go(self, session: GameSession) -> None:
        """Closes a session; a game that is gone already is no error any more."""
        with suppress(GameError):
            session.close()

    def report(self, error: GameError) -> None:
        """Tells the supervisor of the game that it hangs; other errors it sees for itself."""
        if self.reports is not None and isinstance(error, GameTimeoutError):
            hang_report(self.reports, self.port).touch()


def hang_report(folder: Path, port: int) -> Path:
    """Returns the file whose presence says that the game at a port hangs."""
    return folder / f"{port}.hung"
