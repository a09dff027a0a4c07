"""Population based training: members that learn side by side, copy each other and search parameters."""
