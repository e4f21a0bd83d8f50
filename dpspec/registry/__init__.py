"""The installed plugins and their providers, and the broken plugins."""
