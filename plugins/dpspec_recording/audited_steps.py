"""The steps of a recording whose expensive comparisons are made: the audited steps.

Some facts are read at every step: batches, rows, options, noise, whether parameters moved. Clipped sums, gradients,
updates, buffers by value and the parameters of each pass are compared at audited steps only. These are the first
:data:`~dpspec_recording.folder.audit_facts.FIRST` steps, each later step with a probability of the system's
randomness, and steps at which a mistake is likely: at the ends of a pass over the loader, with few records, and after
an evaluation, ``state_dict()`` or a change of an option.
"""

from __future__ import annotations

import random

from dpspec.errors import UsageError
from dpspec_recording.folder.audit_facts import FIRST, AuditFacts

#: The share of later steps that is audited unless the script gives another one.
SHARE = 0.1


class AuditedSteps:
    """Chooses the audited steps of one recording.

    Attributes:
        audited: Whether the current step is audited: the one after the last that ended.
        count: The number of audited steps that ended.
    """

    def __init__(self, share: float = SHARE) -> None:
        """Begin with the first step, which is audited.

        Args:
            share: The probability, in (0, 1], of a step after the first :data:`FIRST`.

        Raises:
            UsageError: ``share`` is not in (0, 1].
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise UsageError(f"audit must be the share of audited steps, above 0 and at most 1, got {share!r}")
        self.share, self.audited = float(share), True
        self._random = random.SystemRandom()
        self._steps = self.count = 0

    @property
    def facts(self) -> AuditFacts:
        return AuditFacts(steps=self._steps, audited=self.count, share=self.share)

    def include(self) -> None:
        """Audit the current step too."""
        self.audited = True

    def end_step(self) -> None:
        """The current step ended; the next one begins."""
        self._steps += 1
        self.count += self.audited
        self.audited = self._steps < FIRST or self._random.random() < self.share
