"""Reads TrackMania recordings and maps (`.Gbx`). No torch."""
