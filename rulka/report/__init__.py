"""What people look at after an evaluation: one page with tables, plots and facts; and pictures of tracks."""
