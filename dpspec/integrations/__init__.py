"""Thin adapters of dpspec to trainers, experiment trackers and pytest.

Each module imports its library, and nothing of another one. ``import dpspec`` does not import them.
"""
