"""Audits of scores computed by another program: the key ``audit.scores``, with the table as the only trial.

A mechanism with an upper bound adds ``SCHEMA`` under ``audit.scores``, reports ``refusals``, delegates to
``trial_inputs`` and ``run_trials``, and concludes from ``recorded_outcomes`` with the ``assumptions``. dpspec trains no
model here.
"""
