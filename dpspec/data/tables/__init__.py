"""Data kinds with named columns."""
