"""A result: its values, its JSON, its validation, and how two of them differ."""
