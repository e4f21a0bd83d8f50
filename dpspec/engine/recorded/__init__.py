"""Recorded trainings: a backend that makes no trials and reads a folder that ``dpspec.record`` wrote.

``executed_run`` reads the run for the pipeline. ``recorded_run`` holds its content, ``schedule`` bounds its epsilon,
``checks`` and ``noise_checks`` test it, ``assumptions`` and ``channels`` list the conditions of a proof,
``canary_bound`` evaluates its canaries, and ``section`` describes it in the result with its accountant's epsilon.
``check`` builds the spec of ``dpspec check``.
"""
