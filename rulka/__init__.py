"""Rulka: a pipeline that teaches a car to race, from human recordings to an evaluated driver."""
