"""Pure numerics of privacy accounting: float64, log space, no torch.

Every answer about a privacy loss is an ``Interval`` that contains the true value.
"""
