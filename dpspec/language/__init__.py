"""Parser and validator of the spec language: YAML files to immutable specs, with located diagnostics."""
