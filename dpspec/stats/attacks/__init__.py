"""Tests and confidence bounds for the guesses of attacks."""
