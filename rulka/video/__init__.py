"""Race videos: MP4 files, and the overlay (HUD)."""
