"""Trials in a store, and where they came from."""
