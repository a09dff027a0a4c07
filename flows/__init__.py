"""Prefect flows: schedule the stages. They compute nothing themselves."""
