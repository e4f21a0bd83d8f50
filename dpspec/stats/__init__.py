"""Statistical tests and confidence bounds for attacks and conformance. Pure functions without torch."""
