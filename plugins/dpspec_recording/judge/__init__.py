"""Recorded trainings: a backend that makes no trials and reads a folder that ``dpspec.record`` wrote.

Each module uses only modules that come before it here. ``recorded_run`` has the content of a run, and its observers'
outcomes. ``channels`` and ``rules`` name what its proof needs. ``checks`` and ``joined_checks`` test its steps, and
``combined_checks`` makes one check for each assumption. ``bounds`` bounds its epsilon, ``canaries`` bounds it from
below, and ``assumptions`` lists the conditions of a proof. ``findings``, ``section`` and ``sentences`` describe all
this in the result. ``executed_run`` calls them for the pipeline, and ``check`` builds the spec of ``dpspec check``.
"""
