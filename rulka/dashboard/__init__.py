"""A page to look at: what the pipeline did and does, in a browser on this machine, without any other server."""
