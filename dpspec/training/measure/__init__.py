"""Measurements of a run: update statistics, logs, attack scores and accuracy."""
