"""Diagnostic codes and the format of diagnostics."""
