"""Probes: one file for each fact of a training, from the hook that observes it to the verdict; ``builtin`` lists all.

A probe's file begins with the mistake that it finds. It imports torch in the methods that observe, because its judge
reads folders without torch.
"""
