"""Strangers' distributions: their tests run where they are installed (``test_laplace_histogram.py``), not from here."""

collect_ignore = ["dpspec-canary", "dpspec-laplace-histogram", "dpspec-matrix"]
