"""Whether the clipped sum changes between the calls that are allowed to change it.

``clip_and_accumulate`` adds to ``p.summed_grad`` and ``add_noise`` reads it. The recorder takes a fingerprint of all
sums after the first and compares it before the next call of either.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dpspec.recording.fingerprints import Fingerprint, Tally, differs, fingerprint


class SummedGradients:
    """Counts the calls that find another sum than the call before left."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """``parameters``: all that Opacus' optimizer steps."""
        self._parameters = list(parameters)
        self._left: Fingerprint | None = None
        self._changed, self._compared = Tally(), 0

    @property
    def found(self) -> list[int]:
        """[comparisons, those that found another sum]."""
        return [self._compared, int(self._changed)]

    def keep(self) -> None:
        """A call that may change the sum is over."""
        self._left = self._fingerprint()

    def forget(self) -> None:
        """The sum has been used, and ``zero_grad`` removes it."""
        self._left = None

    def compare(self) -> None:
        """A call that uses the sum begins."""
        then, now = self._left, self._fingerprint()
        if then is None and now is None:
            return
        self._compared += 1
        self._changed.add(then is None or now is None or differs(then, now))

    def _fingerprint(self) -> Fingerprint | None:
        """The fingerprint of all sums; None without a sum."""
        sums = [getattr(p, "summed_grad", None) for p in self._parameters]
        return None if all(one is None for one in sums) else fingerprint(sums)
