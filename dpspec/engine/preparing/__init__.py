"""From a spec to what can run it: providers, facts, context, trial keys."""
