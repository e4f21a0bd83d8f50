"""Statistical tests and confidence bounds for attacks and conformance. Pure functions without torch.

An attack guesses which of 1000 canaries a training drew. It guesses 100 bits and is right for 90:

>>> from dpspec.stats.attacks.one_run import p_value
>>> round(p_value(canaries=1000, guesses=100, correct=90, epsilon=1.0, delta=1e-5), 6)  # "(1, 1e-5)-DP" is rejected
0.000183

A test of conformance compares the executed run with its declaration. Its limit is the deviation that it finds:

>>> from dpspec.stats.conformance.sampling import inclusions
>>> measured = inclusions(included=1200, chances=100_000, rate=0.01)
>>> measured.p_value < 1e-6, round(measured.measured, 3)
(True, 0.012)
"""
