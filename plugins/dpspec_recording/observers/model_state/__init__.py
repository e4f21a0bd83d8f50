"""The state of the model apart from its parameters."""
