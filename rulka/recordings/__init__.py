"""Reading TrackMania recordings and maps (`.Gbx`). No torch."""
