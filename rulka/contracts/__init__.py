"""What all parts agree on: observations, actions, schedules, sections of parameters, artifacts, stored JSON."""
