"""Local web dashboard of the pipeline's past and running work; needs no other server."""
