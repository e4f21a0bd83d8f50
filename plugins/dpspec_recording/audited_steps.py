"""The steps of a recording whose expensive comparisons are made: the audited steps.

Some facts are read at every step: batches, rows, options, noise, whether parameters moved. Clipped sums, gradients,
updates, buffers by value and the parameters of each pass are compared at audited steps only. These are the first
:data:`FIRST` steps, each later step with a probability of the system's randomness, and steps at which a mistake is
likely: at the ends of a pass over the loader, with few records, and after an evaluation, ``state_dict()`` or a change
of an option.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from dpspec.errors import UsageError
from dpspec.json_records import Count
from dpspec_recording.folder.merging import Number, join_by

#: The number of first steps that are audited.
FIRST = 50

#: The share of later steps that is audited unless the script gives another one.
SHARE = 0.1

#: The probability with which the number of :func:`found_faults` faulty steps is found.
POWER = 0.99


@dataclass(frozen=True, kw_only=True)
class AuditFacts:
    """The audited steps. share: the probability of an audit after the first steps."""

    # ranks audit the steps that all ranks make
    steps: Count = field(metadata=join_by(min, sum))
    audited: Count = field(metadata=join_by(min, sum))
    share: Number = field(metadata=join_by(min))

    @property
    def are_whole(self) -> bool:
        """Whether all steps were audited."""
        return self.audited == self.steps

    @property
    def limit(self) -> float:
        """The share of wrong steps that the audits find; 0 if they cover all."""
        return 0.0 if self.are_whole else found_faults(self.steps, self.share) / self.steps

    @property
    def note(self) -> str:
        """``at 60 of 200 steps``."""
        return f"at {self.audited} of {self.steps} steps"


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


def found_faults(steps: int, share: float) -> int:
    """The smallest number of faulty steps that audits find with probability :data:`POWER`, wherever they are.

    After the first steps each step is audited with probability p = ``share``, independently. m faulty steps among
    them are all missed with probability (1 - p)^m, so m = ln(1 - POWER) / ln(1 - p), rounded up. Faulty first steps
    are found.

    Args:
        steps: The number of steps of the run.
        share: p, in (0, 1].

    Returns:
        At most the number of steps: if all later steps are faulty and fewer than m, more faulty steps would include
        a first one.
    """
    later = max(0, steps - FIRST)
    if share >= 1.0 or not later:
        return min(1, steps)
    return min(math.ceil(math.log(1.0 - POWER) / math.log(1.0 - share)), later + 1)
