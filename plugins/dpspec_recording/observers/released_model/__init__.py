"""The trainings that the released model has seen, beyond the recorded steps."""
