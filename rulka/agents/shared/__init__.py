"""What several algorithms share: interfaces, base learners and actors, networks, parameter bases."""
