"""Downloads maps and recordings from an exchange site. No torch."""
