"""Tests of an executed run against what was declared of it."""
