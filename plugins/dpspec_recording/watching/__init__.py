"""Instruments of observers: fingerprints, noise, copies of updates, values of a model. None changes the training."""
