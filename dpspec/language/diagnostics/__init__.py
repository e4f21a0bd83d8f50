"""Diagnostics as text, and what their codes mean."""
