"""Scores that another program made: the key ``scores`` of an audit, the table as its one trial, and what it rests on.

Any mechanism with an upper bound can offer it: it puts ``SCHEMA`` under its key ``audit.scores``, refuses what
``refusals`` says, hands on ``trial_inputs`` and ``run_trials``, and concludes from ``recorded_outcomes``, with the
assumptions that stand in ``assumptions``. Nothing is trained, and nothing here knows what is bounded.
"""
