"""The steps, noise and rate that the accountant counts.

The mistake: it counts something else than the training does, and states a smaller epsilon::

    for x, y in loader:
        ...
        engine.accountant.history = []       # at the end it knows the last epoch alone
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun
    from dpspec_recording.pending_step import PendingStep


@dataclass(frozen=True, kw_only=True)
class AccountantFacts:
    """The history: noise multipliers and rates, with the numbers of steps."""

    # each rank counts the same steps, and a checkpoint restores the history of earlier parts
    history: tuple[tuple[float, float, Count], ...] = field(metadata=join_by(itemgetter(0), itemgetter(-1)))


STEPS = Fault(
    name="accountant-steps",
    condition="accounting",
    title="steps counted by the accountant",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/535",
    advice=(
        "Let the accountant count each update: keep the step hook of make_private, change nothing in its "
        "history, and use one engine for the optimizer and for get_epsilon."
    ),
)
NOISE = Fault(
    name="accountant-noise",
    condition="accounting",
    title="noise multiplier of the accountant",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/issues/757",
    advice=(
        "The accountant counts another noise multiplier than the optimizer used: give both the same one, "
        "and change it by a scheduler of Opacus only."
    ),
)
RATE = Fault(
    name="accountant-rate",
    condition="accounting",
    title="sampling rate of the accountant",
    observed="reported",
    source="package DPTrainer 0.1.2",
    advice=(
        "The accountant counts another sampling rate than the loader drew with: take both from one call of "
        "make_private, and change neither."
    ),
)


class Accountant(Observer[AccountantFacts]):
    """Reads the last entry of the history and its number of steps at each step."""

    name, kind = "accountant", AccountantFacts | None

    def start(self, training: Training) -> None:
        """Keep the accountant."""
        self._accountant = training.script_parts.accountant

    def after_step(self, step: PendingStep) -> None:
        """Read its last entry."""
        if self._accountant is not None:
            step.accounted = self._accountant.told()

    def facts(self) -> AccountantFacts | None:
        """None without an accountant."""
        if self._accountant is None:
            return None
        return AccountantFacts(history=tuple((s, q, int(n)) for s, q, n in self._accountant.history()))

    @staticmethod
    def judge(facts: AccountantFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """It counts each step with the noise and the rate of the step."""
        if not run.header.accountant:
            return
        counted = run["told_steps"] - run.header.told_before
        behind = int((counted != np.arange(1, run.steps + 1)).sum())
        last = float(counted[-1]) if run.steps and np.isfinite(counted[-1]) else 0.0
        yield STEPS.compared(behind == 0, run.steps, last, "steps")
        if not (counted > 0.0).any():  # it has no noise and no rate that could be others
            return
        yield NOISE.compared_at_steps(run["noise_multiplier"], run["told_noise"])
        rates = np.array(run.rates, dtype=np.float64)
        if (sampled := np.isfinite(rates)).any():
            rates, reported = (np.where(sampled, values, 0.0) for values in (rates, run["told_rate"]))
            yield RATE.compared_at_steps(rates, reported)
