"""The link to the game: socket protocol, client, and a simulated game server. No torch."""
