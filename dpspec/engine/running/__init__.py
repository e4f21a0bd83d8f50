"""The stages of a run: bounds, trials, conclusions and result."""
