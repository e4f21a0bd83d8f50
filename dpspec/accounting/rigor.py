"""What intervals of this package are worth on this machine: certified, under one assumption that is checked."""

from __future__ import annotations

from dpspec.accounting.selftest import failures
from dpspec.contract import Assumption


def library_accuracy() -> Assumption:
    """The assumption of every certified interval: library functions are as accurate as the bounds charge for them.

    Tried on this machine against mpmath; ``false``, so that nothing is proved by it, where a function fails.
    """
    failed = failures()
    return Assumption(
        name="library-accuracy",
        status="false" if failed else "not-rejected",
        text="exp, log, the normal tail and the FFT are as accurate as charged"
        + (f"; on this machine these are not: {', '.join(failed)}" if failed else ""),
        test="compared with mpmath on a few hundred arguments",
    )
