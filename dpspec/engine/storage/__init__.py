"""Trials in a store, and their origins."""
