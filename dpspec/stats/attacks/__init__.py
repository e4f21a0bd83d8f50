"""Tests and confidence bounds for what attacks guessed, and the evidence that they read."""
