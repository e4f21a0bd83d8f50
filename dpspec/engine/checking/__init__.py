"""Checks a recorded run: builds its spec in memory and runs the pipeline."""
