"""Canaries in a recorded training: included by fair bits, and scored after the training."""
