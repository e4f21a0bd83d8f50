"""From a spec to its providers, facts, context and trial keys."""
