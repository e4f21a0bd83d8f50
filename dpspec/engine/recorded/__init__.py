"""What a recorded training did, held against what is claimed for it: ``dpspec check``, and specs that name a recording.

``recorded_run`` reads the folder, ``schedule`` finds what ran in it, ``run_sums``, ``own_checks`` and ``told_noise``
test whether it is what the script's options and its accountant say, ``costs`` bounds what it costs and recomputes the
accountant's figure, ``channels`` and ``cautions`` say what that assumes, ``observed_run`` makes all checks,
``declared_run`` adds bounds and the comparison with a spec, ``section`` describes the run in the result, and ``check``
builds the spec of ``dpspec check`` and runs the pipeline.
"""
