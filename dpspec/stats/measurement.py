"""What a test of the executed pipeline returns: the two numbers compared, how surprising, and what it could see."""

from __future__ import annotations

from dataclasses import dataclass

#: ``detectable`` is computed for a test at this level, the one at which a pipeline is said to deviate, ...
LEVEL = 1e-6
#: ... which must reject with at least this probability.
POWER = 0.99


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The outcome of one test; its fields are those of a ``Check``.

    p_value: the probability, under the declaration, of a deviation at least as large; in [0, 1], 0 where it underflows.
    detectable: the smallest relative deviation that the test rejects at level 1e-6 with probability 0.99, or None
        where no deviation can be seen.
    """

    test: str
    declared: float
    measured: float
    p_value: float
    detectable: float | None
