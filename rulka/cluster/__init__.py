"""Several machines as one: a Ray cluster, its nodes, and what is at work on them. Only this room imports Ray."""
