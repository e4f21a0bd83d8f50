"""The divisor that turns the noisy sum into the gradient of an update.

The mistake: the script scales the gradient by the number of records in the batch, which it so releases::

    optimizer.scale_grad = lambda: [p.grad.div_(len(x)) for p in optimizer.params]

The observers of gradients fit a divisor to each step, which the steps of the folder hold: this one only judges them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpspec_recording.observers.observer import Observer
from dpspec_recording.observers.update_rule.reported_gradients import ReportedGradients
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun

#: Relative difference up to which divisors that the recorder fits to gradients are equal.
FITTED = 1e-2

#: The same for float32 sums and gradients: divisors are stored with six digits.
_FITTED_EXACTLY = 2e-5

#: Length of the rounding of gradients, in standard deviations of the noise, that float32 does not reach below 10^9
#: coordinates and bfloat16 does with 20.
_LEAST_HIDDEN = 0.25

OTHER = Fault(
    name="other-divisor",
    condition="data-independent-hyperparameters",
    title="divisor of the gradient",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/571",
    advice=(
        "The optimizer's gradient is not the noisy sum over the declared divisor: leave scale_grad "
        "unchanged, and clip or scale the noisy gradient in the inner optimizer."
    ),
)


class Divisor(Observer[None]):
    """Compares the fitted divisors with the declared one, and with each other."""

    name = "divisor"

    @staticmethod
    def judge(facts: None, run: JudgedRun) -> Iterator[Statement]:
        """Each step has the declared divisor, which does not change."""
        yield from _compared(run)
        divisors = run["divisor"][np.isfinite(run["divisor"])]
        low, high = divisors.min(initial=np.inf), divisors.max(initial=0.0)
        if high > (1.0 + _precision(run)) * low:
            text = (
                f"the divisor of gradients is from {low:.6g} to {high:.6g}: divide each step's "
                "gradient by one constant, and do not scale or clip the noisy gradient by its norm"
            )
            yield doubted("data-independent-hyperparameters", text=text, option="divisor")


def _compared(run: JudgedRun) -> Iterator[Statement]:
    declared, measured = run["divisor"], run["measured_divisor"]
    both = np.isfinite(declared) & np.isfinite(measured)
    if not both.any():
        return
    note, precision = "the configured divisor", run.divisor_precision
    with np.errstate(over="ignore"):  # an edited divisor may be as small as any number
        difference = np.abs(measured[both] / declared[both] - 1.0)
    most_different, mapped = int(np.argmax(difference)), int((difference > precision).sum())
    right = mapped == 0 or run.has_mapped_factor
    if mapped and right:
        note = f"{note} times a factor of the noisy gradient alone, {mapped} steps"
    values = float(declared[both][most_different]), float(measured[both][most_different])
    yield OTHER.compared(right, *values, note, precision)


def _precision(run: JudgedRun) -> float:
    """Relative difference up to which fitted divisors are equal: a factor of some steps shows in their length.

    A factor of 1.008 shows the batches of 92,000 noisy coordinates that have it.
    """
    gradients = run.fact(ReportedGradients)
    is_exact = gradients is not None and gradients.summed > 0 and gradients.hidden < _LEAST_HIDDEN
    return _FITTED_EXACTLY if is_exact and not run.sums_type and not run.has_arrays else FITTED
