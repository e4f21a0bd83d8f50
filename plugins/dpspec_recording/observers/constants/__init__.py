"""The origin of the constants."""
