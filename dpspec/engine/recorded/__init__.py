"""What a recorded training did, held against what is claimed for it: ``dpspec check``, and specs that name a recording.

``recorded_run`` reads the folder, ``schedule`` finds what ran in it, ``run_sums``, ``own_checks`` and ``told_noise``
test whether it is what the script's options and its accountant say, ``costs`` bounds what it costs and recomputes the
accountant's figure, ``assumptions`` and ``cautions`` say what that rests on, ``checked_run`` puts all of it together,
and ``declared_run`` holds it against a spec.
"""
