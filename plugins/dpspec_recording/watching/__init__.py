"""Observers of a training and the measurements of a step. Only gradient canaries change the training."""
