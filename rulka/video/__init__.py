"""Races as moving pictures: MP4 files, a window, and what is written over them."""
