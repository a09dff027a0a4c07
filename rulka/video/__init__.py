"""Race videos: MP4 files, live window, and the overlay (HUD)."""
