"""The facts of audited steps (:mod:`dpspec_recording.audited_steps`), and the faulty steps that audits find."""

import math
from dataclasses import dataclass, field

from dpspec_recording.folder.merging import Count, Number, join_by

#: The number of first steps that are audited.
FIRST = 50

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
