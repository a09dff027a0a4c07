"""The board: races of an agent as a file that anyone can check, and the table of such files."""
