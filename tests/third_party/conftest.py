"""A stranger's distribution: its tests run where it is installed (``test_laplace_histogram.py``), not from here."""

collect_ignore = ["dpspec-laplace-histogram"]
