"""The faults that tests of a recorded run look for.

A :class:`Fault` is declared once, with the code that tests for it: its name, what rejects, and what to do then. It
makes the issues of its tests.

>>> fault = Fault(
...     name="update-without-noise",
...     condition="noise-scale",
...     title="parameter updates without noise",
...     observed="reported",
...     source="https://github.com/meta-pytorch/opacus/issues/313",
...     advice="Add noise at each update.",
... )
>>> test = fault.none_found(2, "first at step 7")
>>> test.check.p_value, test.check.test, test.fix
(0.0, 'parameter updates without noise, exact', 'Add noise at each update.')
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dpspec.stats.conformance.measurement import LimitOf, Measurement, Observed, exactly
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.outcomes.issue import Issue

Values: TypeAlias = Sequence[float | None] | np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a training that tests of its recording look for.

    Attributes:
        name: An identifier, for code.
        condition: The name of the condition that a training with this fault violates.
        title: The fault in words. A count of it, or a property without it, is the test's name for users.
        source: An example of the mistake: the URL of a public incident (an issue, a pull request, a paper, a shipped
            example) that the fault observes, a package with its version, or
            :data:`~dpspec.contract.rules.MADE_TWICE`.
        advice: A likely cause, and what to do.
        limit_of: The kind of deviation that the limit of its tests measures.
        explains: The names of further tests that the fault makes reject.
    """

    name: str
    condition: str
    title: str
    observed: Observed
    source: str
    advice: str
    limit_of: LimitOf = "all-steps"
    explains: tuple[str, ...] = ()

    def measured(
        self, measurement: Measurement, note: str, *, limit_of: LimitOf | None = None, advice: str | None = None
    ) -> Issue:
        """The outcome of a measurement. ``limit_of``, ``advice``: of this outcome, if not the fault's."""
        return Issue(
            condition=self.condition,
            level="deviates",
            text=measurement.title,
            fix=self.advice if advice is None else advice,
            test=measurement.check(self.condition, self.observed, note),
            explains=self.explains,
            name=self.name,
            is_exact=measurement.is_exact,
            limit_of=self.limit_of if limit_of is None else limit_of,
        )

    def compared(
        self,
        right: bool,
        declared: float,
        measured: float,
        note: str,
        detectable: float | None = 0.0,
        *,
        whole: bool = True,
        title: str = "",
        advice: str | None = None,
    ) -> Issue:
        """The outcome of a comparison without randomness, which passes if ``right``.

        ``detectable``: None for a comparison that covers a part of the condition only. ``whole``: whether it covers the
        whole run, and so verifies it; otherwise it tests the other steps. ``title``: of this outcome, if not the
        fault's.
        """
        measurement = exactly(title or self.title, right, declared, measured, detectable)
        return self.measured(replace(measurement, is_exact=whole), note, advice=advice)

    def none_found(
        self,
        count: float,
        note: str = "",
        detectable: float | None = 0.0,
        *,
        whole: bool = True,
        advice: str | None = None,
    ) -> Issue:
        """The outcome of a count that should be zero."""
        return self.compared(count == 0, 0, count, note, detectable, whole=whole, advice=advice)

    def compared_at_steps(self, declared: Values, executed: Values) -> Issue:
        """The outcome of a comparison of values of steps (T,), None if unknown. It has the first different values."""
        expected, measured = np.array(declared, dtype=np.float64), np.array(executed, dtype=np.float64)
        wrong = ~np.isclose(measured, expected, rtol=1e-9, atol=0.0)
        step = int(np.argmax(wrong))
        first, changed = (float(np.nan_to_num(values[step], nan=0.0)) for values in (expected, measured))
        note = f"first at step {step + 1}" if wrong.any() else "at all steps"
        return self.compared(not wrong.any(), first, changed, note)

    def audited(self, audits: AuditFacts, count: float, note: str = "", detectable: float | None = 0.0) -> Issue:
        """The outcome of a count over the audited steps that should be zero."""
        return self.none_found(count, f"{note}{audits.note}", detectable, whole=audits.are_whole)
