"""Validation of documents against the schemas of core and plugins."""
