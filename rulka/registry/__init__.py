"""Agent registry: agents by name, promotion, paired comparison and nightly evaluation."""
