"""Recorded trainings: a backend that makes no trials and reads a folder that ``dpspec.record`` wrote.

``executed_run`` reads the run for the pipeline. ``recorded_run`` and ``evidence`` hold its content, ``schedule`` bounds
its epsilon, ``checks`` and ``noise_checks`` test it, ``assumptions`` and ``channels`` list the conditions of a
proof, ``canary_bound`` evaluates its canaries, ``accountant`` recomputes its accountant's epsilon, and ``section``
describes it in the result. ``check`` builds the spec of ``dpspec check``.
"""
