"""Recorded trainings: a backend that makes no trials and reads a folder that ``dpspec.record`` wrote.

``executed_run`` reads the run for the pipeline. ``recorded_run`` holds its content, ``bounds`` bounds its epsilon, also
by canaries, ``checks``, ``noise_checks`` and ``joined_checks`` test it, ``assumptions`` and ``channels`` list the
conditions of a proof, and ``section`` describes it in the result. ``check`` builds the spec of ``dpspec check``.
"""
