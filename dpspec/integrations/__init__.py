"""Thin adapters of dpspec to trainers, experiment trackers and pytest.

Each module imports its library, and nothing of another one. ``import dpspec`` does not import them. Those that record
trainings are names of :mod:`dpspec_recording.integrations`.
"""
