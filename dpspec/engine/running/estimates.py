"""How far ``Plan.seconds`` is to be trusted: within a range, which is said instead of the one number.

Plans count operations and steps, and know neither the machine nor what else runs on it. Held against the processor time
of trials on one core (the quickstart, ``specs/attacks``, digits of ``rero`` and ``per-instance``: 650 to 20,410
parameters, 10 to 200 steps), plans said between 0.15 and 2.7 times what trials took; of the shortest ones too little,
as each has a second or two beside its steps. No factor of two can be promised. While a run is under way,
its own pace counts.
"""

from __future__ import annotations

from dpspec.engine.results.decimals import duration

#: A trial takes no less than this share of what its plan says, and no more than so many times that and some seconds.
LEAST, MOST, BESIDE = 1.0 / 3.0, 5.0, 2.0


def span(seconds: float) -> tuple[float, float]:
    """From where to where the seconds of a plan, at least 0, lie on one core that has nothing else to do."""
    return LEAST * seconds, MOST * seconds + BESIDE


def foreseen(seconds: float) -> str:
    """That in words: ``1.1 s to 18 s``."""
    low, high = span(seconds)
    return f"{duration(low)} to {duration(high)}"
