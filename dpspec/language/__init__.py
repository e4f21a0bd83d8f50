"""The spec language: YAML files to validated, immutable specs, with every error located."""
