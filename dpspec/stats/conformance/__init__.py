"""Tests that an executed run conforms to its declaration."""
