"""The evaluation report (one page of tables, plots and provenance), and pictures of tracks."""
