"""Verdicts from findings and evidence."""
