"""The link to the game: its socket protocol, a client, and a game without the game. No torch."""
