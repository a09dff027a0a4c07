"""Prefect: when to run the stages. No computation lives here."""
