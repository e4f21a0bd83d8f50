"""Trainings that break their privacy claim, by channel; ``unprivate_recordings.py`` runs them."""
