"""Observers: one file for each fact of a training, from the hook that observes it to the verdict.

Each folder answers one of the eight questions of a report, its channels. ``all.py`` lists the observers, and
``own_rules.py`` those that give cautions alone, whose form is public: :class:`dpspec.contract.rules.TrainingRule`. A
file begins with the mistake that it finds. It imports torch in the methods that observe, because its judge reads
folders without torch.
"""
