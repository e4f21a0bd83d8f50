"""Tests and confidence bounds for attacks on a pipeline and for what it was seen to do. Pure; no torch."""
